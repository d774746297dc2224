// Gradients of experts' weights of fp8 operands, for Hopper. Codes lie along the rows of segments,
// which have whole blocks of 128 with zeros behind their own; scales by column and block, or by
// segment.

#include "kernels/grouped_gemm/grouped_gemm_fp8_sm90.cuh"
#include "kernels/grouped_gemm/kept_sums.cuh"

namespace trireme::cuda {
namespace {

/// The scales of an operand's columns; of a block of rows, or of a segment, `count` of them.
struct ColumnScales {
  const float* scales;
  ScaleBlocks blocks;
  int count;
};

/// Maps of codes and of c [G M, N]; an expert's sizes and tiles down; where sums are kept.
struct Fp8Weights {
  TensorMap a, b, c;
  SegmentTable table;
  int m, n, down;
  bool accumulate, by_tma;
  ColumnScales scales_a, scales_b;
  ColumnTiles columns;
  int levels;
  float* kept;
};

/// A block's tile in an expert's gradient.
struct Fp8GradientTile {
  int expert, row;
  ColumnTile columns;
};

/// The tiles of the experts one after the other, which the blocks take in turn.
template <class T>
class Fp8GradientTiles {
 public:
  __device__ __forceinline__ explicit Fp8GradientTiles(const Fp8Weights& p)
      : p_(p), next_(static_cast<int>(blockIdx.x)) {}
  __device__ __forceinline__ bool take(Fp8GradientTile& tile) {
    const int across = p_.columns.count(), of_expert = p_.down * across;
    const int expert = next_ / of_expert;
    if (expert >= p_.table.experts) return false;
    const TileAt at = tile_at(next_ % of_expert, p_.down, across);
    next_ += static_cast<int>(gridDim.x);
    tile = {expert, static_cast<int>(at.row) * T::kM, p_.columns.at(static_cast<int>(at.column))};
    return true;
  }

 private:
  const Fp8Weights& p_;
  int next_;
};

/// The blocks of a segment's rows.
struct SegmentBlocks {
  int segment, first, count;
};
__device__ __forceinline__ SegmentBlocks blocks_of(const SegmentTable& table, int expert,
                                                   int source) {
  constexpr int kBlock = 128;
  const int segment = expert * static_cast<int>(table.sources) + source;
  const int begin = table.begins[segment], rows = table.begins[segment + 1] - begin;
  return {segment, (begin + kBlock - 1) / kBlock + segment, (rows + kBlock - 1) / kBlock};
}

/// ScaleCopies' of a tile and a segment.
template <class T>
struct SegmentScales {
  static constexpr bool kInBlocks = T::kSums == Fp8Sums::kByColumn;
  const Fp8Weights& p;
  const Fp8GradientTile& at;
  const SegmentBlocks& of;
  const float *a = p.scales_a.scales, *b = p.scales_b.scales;

  __device__ __forceinline__ int row(int i) const {
    return at.row + i < p.m ? p.scales_a.blocks.block_of(at.row + i) : -1;
  }
  __device__ __forceinline__ bool has_column(int i) const {
    return at.columns.begin + i < at.columns.end;
  }
  __device__ __forceinline__ int column(int i) const { return at.columns.block + i; }
  __device__ __forceinline__ int all(int) const { return at.columns.block; }
  __device__ __forceinline__ int step_a(int step) const {
    return (kInBlocks ? of.first + step : of.segment) * p.scales_a.count;
  }
  __device__ __forceinline__ int step_b(int step) const {
    return (kInBlocks ? of.first + step : of.segment) * p.scales_b.count;
  }
};

template <class T>
__device__ __forceinline__ void bring_segments(typename T::Smem& s, const Fp8Weights& p) {
  if (threadIdx.x != 0) return;
  ptx::prefetch_tensor_map(p.a);
  ptx::prefetch_tensor_map(p.b);
  Ring<T::kStages> ring;
  Fp8GradientTiles<T> tiles(p);
  for (Fp8GradientTile at; tiles.take(at);) {
    for (int source = 0; source < p.table.sources; ++source) {
      const SegmentBlocks of = blocks_of(p.table, at.expert, source);
      for (int step = 0; step < of.count; ++step, ring.advance()) {
        std::uint64_t* full = &s.full[ring.stage];
        ptx::mbarrier_wait(&s.empty[ring.stage], ring.parity ^ 1);
        ptx::mbarrier_arrive_expect_tx(full, static_cast<int>(sizeof s.a[0] + sizeof s.b[0]));
        ptx::tma_load_3d(s.a[ring.stage], p.a, 0, at.row, of.first + step, full);
        ptx::tma_load_3d(s.b[ring.stage], p.b, 0, at.columns.begin, of.first + step, full);
      }
    }
  }
}

template <class T>
__device__ __forceinline__ void bring_segment_scales(typename T::Smem& s, const Fp8Weights& p) {
  ScaleCopies<T> copies(s);
  Fp8GradientTiles<T> tiles(p);
  for (Fp8GradientTile at; tiles.take(at);) {
    for (int source = 0; source < p.table.sources; ++source) {
      const SegmentBlocks of = blocks_of(p.table, at.expert, source);
      copies.bring(SegmentScales<T>{p, at, of}, of.count);
    }
  }
  copies.finish();
}

template <class T, Fp8 kA, Fp8 kB>
__global__ void __launch_bounds__(T::kThreads, 1)
    grouped_fp8_weights_kernel(const __grid_constant__ Fp8Weights p,
                               const StoreEpilogue<float, float> epilogue,
                               const DirectSink<float> direct) {
  auto& s = smem<typename T::Smem>();
  run_fp8<T>(
      s, [&] { bring_segments<T>(s, p); }, [&] { bring_segment_scales<T>(s, p); },
      [&](int consumer) {
        using Sums = float[T::kWaves][64];
        KeptSums<Sums, 128 * T::kConsumers> kept(p.kept, p.levels,
                                                 static_cast<int>(threadIdx.x) - 128);
        Ring<T::kStages> ring;
        int buffer = 0;
        const auto sources = static_cast<int>(p.table.sources);
        Fp8GradientTiles<T> tiles(p);
        for (Fp8GradientTile at; tiles.take(at);) {
          Sums sums;
          bool given = false;
          for (int source = 0; source < sources; ++source) {
            const int blocks = blocks_of(p.table, at.expert, source).count;
            multiply_scaled<T, kA, kB, false>(sums, s, ring, consumer, blocks);
            given = kept.carry(sums, source, source + 1 == sources, blocks > 0);
          }
          if (!given && p.accumulate) continue;
          const int first = at.expert * p.m;
#pragma unroll
          for (int wave = 0; wave < T::kWaves; ++wave) {
            const int row = at.row + wave_row<T>(consumer, wave);
            if (row >= p.m) continue;
            finish_sums<T::kN>({s.out[consumer], &p.c, consumer, buffer}, p.by_tma, epilogue,
                               {direct.outputs, at.columns.end, direct.pairs}, sums[wave],
                               {first + row, at.columns.begin}, {first + p.m, at.columns.end});
          }
        }
      });
}

ColumnScales scales_of(const ScalesGpu& of) {
  const ScaleBlocks blocks(of);
  return {of.scales, blocks, blocks.block_of(blocks.begin[blocks.parts] - 1) + 1};
}

template <Fp8Sums kSums, Fp8 kA, Fp8 kB>
void launch_weights(const GroupedGemmQuantizedWeightsGpuArgs& args) {
  using T = LargeGroupedTile<kSums>;
  const ColumnTiles columns(args.b_scales, false);
  const bool pairs = args.n % 2 == 0 && columns.even() && aligned_to_pairs(sizeof(float), args.c);
  const StoreEpilogue<float, float> epilogue = {
      {nullptr, args.n, pairs}, args.accumulate ? args.c : nullptr, nullptr};
  const DirectSink<float> direct = {{{args.c, nullptr, nullptr}, {args.n, 0, 0}}, args.n, pairs};
  Fp8Weights p;
  p.a = codes_maps(args.a, args.blocks, args.m, T::kK, T::kM);
  p.b = codes_maps(args.b, args.blocks, args.n, T::kK, T::kN);
  p.by_tma = pairs && args.n % 4 == 0 && aligned_to_16(args.c);
  p.c = p.by_tma
            ? out_map<StoreEpilogue<float, float>>(direct.outputs, 0, args.experts * args.m, args.n)
            : p.a;
  p.table = {args.begins, args.experts, args.sources};
  p.m = static_cast<int>(args.m);
  p.n = static_cast<int>(args.n);
  p.down = static_cast<int>(blocks_for(args.m, T::kM));
  p.accumulate = args.accumulate;
  p.scales_a = scales_of(args.a_scales);
  p.scales_b = scales_of(args.b_scales);
  p.columns = columns;
  p.levels = gpu_scratch::grouped_weights_levels(args.sources);
  p.kept = args.sums;
  const std::int64_t tiles = args.experts * p.down * columns.count();
  launch(grouped_fp8_weights_kernel<T, kA, kB>,
         hopper_launch<T>(args.exec, "grouped_gemm_fp8", min(tiles, weight_clusters<T>(args))), p,
         epilogue, direct);
}

}  // namespace

void fp8_weights(const GroupedGemmQuantizedWeightsGpuArgs& args) {
  for_formats(args, [&](auto a, auto b) {
    constexpr auto kA = static_cast<Fp8>(decltype(a)::value),
                   kB = static_cast<Fp8>(decltype(b)::value);
    if (args.b_scales.row_block != 0) return launch_weights<Fp8Sums::kByColumn, kA, kB>(args);
    launch_weights<Fp8Sums::kByTile, kA, kB>(args);
  });
}

}  // namespace trireme::cuda
