// Gradients of experts' weights for Hopper: the main loop of gemm_sm90.cuh over the rows of
// segments.
//
// Boxes of 64 rows run past a segment's end. What they bring from behind it may be anything, NaN
// too, so that the rows there become 0 in both operands before the last step's products.

#include "kernels/common/segment_tiles.cuh"
#include "kernels/gemm/gemm_sm90.cuh"
#include "kernels/grouped_gemm/grouped_gemm_launch_sm90.cuh"
#include "kernels/grouped_gemm/kept_sums.cuh"

namespace trireme::cuda {
namespace {

/// Maps of the operands and of c [G M, N]; an expert's sizes and tiles; where sums are kept.
struct HopperWeights {
  TensorMap a, b, c;
  SegmentTable table;
  int m, n, down, across;
  bool accumulate, by_tma;
  int levels;
  float* kept;
};

/// A block's tile in an expert's gradient.
struct GradientTile {
  int expert, row, column;
};

/// The tiles of the experts one after the other, which the clusters take in turn, each as high as
/// all blocks of a cluster.
template <class T>
class GradientTiles {
 public:
  __device__ __forceinline__ explicit GradientTiles(const HopperWeights& p)
      : p_(p), next_(static_cast<int>(blockIdx.x) / T::kCluster) {
    if constexpr (T::kCluster > 1) rank_ = ptx::cluster_rank();
  }
  [[nodiscard]] __device__ __forceinline__ int rank() const { return rank_; }
  __device__ __forceinline__ bool take(GradientTile& tile) {
    const int of_expert = p_.down * p_.across, expert = next_ / of_expert;
    if (expert >= p_.table.experts) return false;
    const TileAt at = tile_at(next_ % of_expert, p_.down, p_.across);
    next_ += static_cast<int>(gridDim.x) / T::kCluster;
    tile = {expert, (static_cast<int>(at.row) * T::kCluster + rank_) * T::kM,
            static_cast<int>(at.column) * T::kN};
    return true;
  }

 private:
  const HopperWeights& p_;
  int next_, rank_ = 0;
};

template <class T>
__device__ __forceinline__ void produce_segments(typename T::Smem& s, const HopperWeights& p) {
  Ring<T::kStages> ring;
  GradientTiles<T> tiles(p);
  const auto sources = static_cast<int>(p.table.sources);
  for (GradientTile tile; tiles.take(tile);) {
    const std::int32_t* begins = p.table.begins + std::int64_t{tile.expert} * sources;
    for (int source = 0, row = begins[0]; source < sources; ++source) {
      const int end = begins[source + 1];
      for (; row < end; row += T::kK, ring.advance()) {
        std::uint64_t* full = &s.full[ring.stage];
        ptx::mbarrier_wait(&s.empty[ring.stage], ring.parity ^ 1);
        ptx::mbarrier_arrive_expect_tx(full, static_cast<int>(sizeof s.a[0] + sizeof s.b[0]));
        bring<T, T::kM, false>(s.a[ring.stage], p.a, tile.row, row, full);
        bring_b<T, false, PlainEpilogue<float>>(s.b[ring.stage], p.b, tiles.rank(), tile.column,
                                                row, full);
      }
      row = end;
    }
  }
}

/// Rows from `rows` on become 0, for both warpgroups: each clears its own part of a and half of b.
template <class T>
__device__ __forceinline__ void clear_behind(typename T::Smem& s, int stage, int consumer,
                                             int rows) {
  constexpr int kBlock = T::kSide * T::kK, kChunk = 8;
  const Vector<bf16, kChunk> zeros = {};
  bf16* of_b = s.b[stage] + consumer * T::kN / 2 * T::kK;
  const int first = rows * T::kSide + static_cast<int>(threadIdx.x) % 128 * kChunk;
  for (int element = first; element < kBlock; element += 128 * kChunk) {
    store(s.a[stage] + consumer * kBlock + element, zeros);
#pragma unroll
    for (int block = 0; block < T::kN / 2 / T::kSide; ++block)
      store(of_b + block * kBlock + element, zeros);
  }
  ptx::fence_proxy_async_shared();
  ptx::barrier_sync(1 + T::kConsumers, 128 * T::kConsumers);
}

/// The product over a segment's rows.
template <class T>
__device__ __forceinline__ void multiply_segment(float (&sums)[T::kN / 2], typename T::Smem& s,
                                                 Ring<T::kStages>& ring, int consumer, int rows) {
  const int steps = (rows + T::kK - 1) / T::kK, tail = rows % T::kK;
  multiply_tile<T, true, false>(sums, s, ring, consumer, steps, [&](int stage, int step) {
    if (tail != 0 && step == steps - 1) clear_behind<T>(s, stage, consumer, tail);
  });
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    grouped_weights_sm90_kernel(const __grid_constant__ HopperWeights p,
                                const StoreEpilogue<float, float> epilogue,
                                const DirectSink<float> direct) {
  auto& s = smem<typename T::Smem>();
  const int group = static_cast<int>(threadIdx.x) / 128;
  begin_ring<T>(s, 1);

  if (group == 0) {
    ptx::decrease_registers<40>();
    if (threadIdx.x == 0) {
      ptx::prefetch_tensor_map(p.a);
      ptx::prefetch_tensor_map(p.b);
      produce_segments<T>(s, p);
    }
    leave_cluster<T>();
    return;
  }

  ptx::increase_registers<232>();
  using Sums = float[T::kN / 2];
  const int consumer = group - 1, sources = static_cast<int>(p.table.sources);
  KeptSums<Sums, 128 * T::kConsumers> kept(p.kept, p.levels, static_cast<int>(threadIdx.x) - 128);
  Ring<T::kStages> ring;
  int buffer = 0;
  GradientTiles<T> tiles(p);
  for (GradientTile tile; tiles.take(tile);) {
    const std::int32_t* begins = p.table.begins + std::int64_t{tile.expert} * sources;
    Sums sums;
    bool given = false;
    for (int source = 0; source < sources; ++source) {
      const int rows = begins[source + 1] - begins[source];
      given = rows > 0;
#pragma unroll
      for (int e = 0; e < T::kN / 2; ++e) sums[e] = 0.0F;  // an else branch would cost registers
      if (given) multiply_segment<T>(sums, s, ring, consumer, rows);
      given = kept.carry(sums, source, source + 1 == sources, given);
    }
    const int row = tile.row + consumer * 64, first = tile.expert * p.m;
    if ((!given && p.accumulate) || row >= p.m) continue;
    finish_sums<T::kN>({s.out[consumer], &p.c, consumer, buffer}, p.by_tma, epilogue, direct, sums,
                       {first + row, tile.column}, {first + p.m, p.n});
  }
  if (threadIdx.x % 128 == 0) ptx::bulk_wait<0>();
  leave_cluster<T>();
}

template <class T>
void launch_segments(const GroupedGemmWeightsGpuArgs& args) {
  const std::int64_t down = blocks_for(args.m, T::kM * T::kCluster),
                     across = blocks_for(args.n, T::kN);
  const bool pairs = args.n % 2 == 0 && aligned_to_pairs(sizeof(float), args.c);
  const StoreEpilogue<float, float> epilogue = {
      {nullptr, args.n, pairs}, args.accumulate ? args.c : nullptr, nullptr};
  const DirectSink<float> direct = {{{args.c, nullptr, nullptr}, {args.n, 0, 0}}, args.n, pairs};
  const TensorMap a = matrix_map(args.a, args.rows, args.m, args.m, T::kK);
  const bool by_tma = args.n % 4 == 0 && aligned_to_16(args.c);
  const HopperWeights p = {a,
                           matrix_map(args.b, args.rows, args.n, args.n, T::kK),
                           by_tma ? out_map<StoreEpilogue<float, float>>(
                                        direct.outputs, 0, args.experts * args.m, args.n)
                                  : a,
                           {args.begins, args.experts, args.sources},
                           static_cast<int>(args.m),
                           static_cast<int>(args.n),
                           static_cast<int>(down),
                           static_cast<int>(across),
                           args.accumulate,
                           by_tma,
                           gpu_scratch::grouped_weights_levels(args.sources),
                           args.sums};
  const std::int64_t tiles = args.experts * down * across;
  launch(grouped_weights_sm90_kernel<T>,
         hopper_launch<T>(args.exec, "grouped_gemm_weights", min(tiles, weight_clusters<T>(args))),
         p, epilogue, direct);
}

}  // namespace

/// A tensor map has rows.
bool hopper_serves_weights(const GroupedGemmWeightsGpuArgs& args) {
  return args.type == DType::kBF16 && args.rows > 0 && args.m % 8 == 0 && args.n % 8 == 0 &&
         args.experts * args.m <= kLongestSide && args.n <= kLongestSide &&
         aligned_to_16(args.a, args.b);
}

/// As dense products choose theirs.
void hopper_weights(const GroupedGemmWeightsGpuArgs& args) {
  const std::int64_t wide = args.experts * blocks_for(args.m, 256) * blocks_for(args.n, 256);
  if (args.m > 128 && 2 * wide >= args.multiprocessors)
    return launch_segments<WideHopperTile>(args);
  launch_segments<NarrowHopperTile>(args);
}

}  // namespace trireme::cuda
