// Experts' rows in fp8 times their weights, for Hopper: tiles as those of bf16
// (grouped_gemm_cuda_sm90.cu), scales by row, or by the segment that a row is of. Sums are precise
// whatever is asked for: what brings them to f32 runs beside other warpgroups' products.

#include "kernels/grouped_gemm/grouped_gemm_fp8_sm90.cuh"

namespace trireme::cuda {
namespace {

/// Maps of codes and result; its columns, and blocks of k.
struct Fp8Rows {
  TensorMap a, b, c;
  SegmentTable table;
  int n, steps;
  bool by_tma, scales_by_row;
  Fp8Scales scales_a, scales_b;
  int matrix_scales;  ///< of an expert's weights
  ColumnTiles columns;
};

/// A block's tile: the expert, its first row and where the expert's end, its columns.
struct Fp8RowsTile {
  int expert, row, end;
  ColumnTile columns;
};

/// The tiles that the blocks take in turn.
template <class T>
class Fp8RowsTiles {
 public:
  __device__ __forceinline__ explicit Fp8RowsTiles(const Fp8Rows& p)
      : p_(p), next_(static_cast<int>(blockIdx.x)) {}
  /// By all lanes of a warp.
  __device__ __forceinline__ bool take(Fp8RowsTile& tile) {
    const int columns = p_.columns.count();
    const ExpertTile of = expert_tile<T::kM>(p_.table, columns, next_);
    if (of.expert < 0) return false;
    next_ += static_cast<int>(gridDim.x);
    const TileAt at = tile_at(of.tile, (of.end - of.begin + T::kM - 1) / T::kM, columns);
    tile = {static_cast<int>(of.expert), static_cast<int>(of.begin + at.row * T::kM),
            static_cast<int>(of.end), p_.columns.at(static_cast<int>(at.column))};
    return true;
  }

 private:
  const Fp8Rows& p_;
  int next_;
};

/// ScaleCopies' of a tile.
struct RowsScales {
  const Fp8Rows& p;
  const Fp8RowsTile& at;
  const float *a = p.scales_a.scales, *b = p.scales_b.scales;

  __device__ __forceinline__ int row(int i) const {
    const int row = at.row + i;
    if (row >= at.end) return -1;
    if (p.scales_by_row) return row * p.scales_a.stride;
    int segment = at.expert * static_cast<int>(p.table.sources);
    while (row >= p.table.begins[segment + 1]) ++segment;
    return segment * p.scales_a.stride;
  }
  __device__ __forceinline__ int all(int) const {
    return at.expert * p.matrix_scales + at.columns.block * p.scales_b.stride;
  }
  __device__ __forceinline__ int step_a(int step) const {
    return p.scales_a.columns.of_block(step);
  }
  __device__ __forceinline__ int step_b(int step) const {
    return p.scales_b.columns.of_block(step);
  }
};

template <class T>
__device__ __forceinline__ void bring_rows(typename T::Smem& s, const Fp8Rows& p) {
  ptx::prefetch_tensor_map(p.a);
  ptx::prefetch_tensor_map(p.b);
  Ring<T::kStages> ring;
  Fp8RowsTiles<T> tiles(p);
  for (Fp8RowsTile at; tiles.take(at);) {
    if (threadIdx.x != 0) continue;
    for (int step = 0; step < p.steps; ++step, ring.advance()) {
      std::uint64_t* full = &s.full[ring.stage];
      ptx::mbarrier_wait(&s.empty[ring.stage], ring.parity ^ 1);
      ptx::mbarrier_arrive_expect_tx(full, static_cast<int>(sizeof s.a[0] + sizeof s.b[0]));
      ptx::tma_load_2d(s.a[ring.stage], p.a, step * T::kK, at.row, full);
      ptx::tma_load_3d(s.b[ring.stage], p.b, step * T::kK, at.columns.begin, at.expert, full);
    }
  }
}

template <class T>
__device__ __forceinline__ void bring_row_scales(typename T::Smem& s, const Fp8Rows& p) {
  ScaleCopies<T> copies(s);
  Fp8RowsTiles<T> tiles(p);
  for (Fp8RowsTile at; tiles.take(at);) copies.bring(RowsScales{p, at}, p.steps);
  copies.finish();
}

template <class T, Fp8 kA, Fp8 kB>
__global__ void __launch_bounds__(T::kThreads, 1)
    grouped_fp8_kernel(const __grid_constant__ Fp8Rows p, const DirectSink<bf16> direct) {
  auto& s = smem<typename T::Smem>();
  run_fp8<T>(
      s, [&] { bring_rows<T>(s, p); }, [&] { bring_row_scales<T>(s, p); },
      [&](int consumer) {
        Ring<T::kStages> ring;
        int buffer = 0;
        Fp8RowsTiles<T> tiles(p);
        for (Fp8RowsTile at; tiles.take(at);) {
          float sums[T::kWaves][64];
          multiply_scaled<T, kA, kB, false>(sums, s, ring, consumer, p.steps);
          const auto finish = [&](int wave, const float* of) {
            const TileOrigin origin{at.row + wave_row<T>(consumer, wave), at.columns.begin};
            if (origin.row >= at.end) return;
            finish_sums<T::kN>({s.out[consumer], &p.c, consumer, buffer}, p.by_tma,
                               PlainEpilogue<bf16>(),
                               {direct.outputs, at.columns.end, direct.pairs}, of, origin,
                               {at.end, at.columns.end});
          };
          finish(0, sums[0]);  // a loop would stay one, and index sums in memory
          if constexpr (T::kWaves > 1) finish(1, sums[1]);
        }
      });
}

Fp8Scales scales_of(const GroupedGemmQuantizedGpuArgs& args, const ScalesGpu& of) {
  Fp8Scales scales{of.scales, static_cast<int>(of.columns), {}};
  scales.columns.each_block = of.column_block != 0;
  scales.columns.parts = args.k_parts;
  for (int part = 0; part < args.k_parts; ++part)
    scales.columns.ends[part] = static_cast<int>(args.k_ends[part]);
  return scales;
}

template <class T, Fp8 kA, Fp8 kB>
void launch_rows(const GroupedGemmQuantizedGpuArgs& args) {
  const ColumnTiles columns(args.b_scales, false);
  const bool pairs = args.n % 2 == 0 && columns.even() &&
                     aligned_to_pairs(sizeof(bf16), static_cast<const void*>(args.c));
  const DirectSink<bf16> direct = {
      {{static_cast<bf16*>(args.c), nullptr, nullptr}, {args.n, 0, 0}}, args.n, pairs};
  Fp8Rows p;
  p.a = codes_map(args.a, args.rows, args.k, T::kM);
  p.b = codes_maps(args.b, args.experts, args.n, args.k, T::kN);
  p.by_tma = pairs && args.n % 8 == 0 && aligned_to_16(args.c);
  p.c = p.by_tma ? out_map<PlainEpilogue<bf16>>(direct.outputs, 0, args.rows, args.n) : p.a;
  p.table = {args.begins, args.experts, args.sources};
  p.n = static_cast<int>(args.n);
  p.steps = static_cast<int>(args.k / T::kK);
  p.scales_by_row = args.a_scales.row_block != 0;
  p.scales_a = scales_of(args, args.a_scales);
  p.scales_b = scales_of(args, args.b_scales);
  p.columns = columns;
  const ScaleBlocks& blocks = columns.blocks;
  p.matrix_scales = (blocks.block_of(blocks.begin[blocks.parts] - 1) + 1) * p.scales_b.stride;
  // Each expert may have a tile that is not full.
  const std::int64_t tiles = (args.rows / T::kM + min(args.experts, args.rows)) * columns.count();
  launch(grouped_fp8_kernel<T, kA, kB>,
         hopper_launch<T>(args.exec, "grouped_gemm_fp8", min(tiles, clusters_of<T>(args))), p,
         direct);
}

/// Large tiles where experts fill some, and they the GPU. The bits are the same.
void multiply(const GroupedGemmQuantizedGpuArgs& args) {
  using Large = LargeGroupedTile<Fp8Sums::kByTile>;
  using Narrow = NarrowFp8Tile<Fp8Sums::kByTile>;
  const std::int64_t tiles = args.rows / Large::kM * blocks_for(args.n, Large::kN);
  const bool large = args.rows >= args.experts * Large::kM && tiles >= args.multiprocessors;
  for_formats(args, [&](auto a, auto b) {
    constexpr auto kA = static_cast<Fp8>(decltype(a)::value),
                   kB = static_cast<Fp8>(decltype(b)::value);
    large ? launch_rows<Large, kA, kB>(args) : launch_rows<Narrow, kA, kB>(args);
  });
}

}  // namespace

const GroupedGemmQuantizedGpuKernels grouped_gemm_fp8_sm90 = {multiply, fp8_weights};

}  // namespace trireme::cuda
