// Experts' rows times their weights for Hopper: the main loop of gemm_sm90.cuh over tiles that the
// warps look up in the table of rows.
//
// A tile is of one expert. Where it has fewer rows than a tile, those of the next expert are read
// and multiplied too, but leave with that expert's own tiles alone; 64 rows without any of their
// own are neither. Weights are a tensor of three dims to TMA, so that what lies behind an expert's
// columns and K is 0.

#include "kernels/common/segment_tiles.cuh"
#include "kernels/gemm/gemm_sm90.cuh"
#include "kernels/grouped_gemm/grouped_gemm_launch_sm90.cuh"

namespace trireme::cuda {
namespace {

/// Maps of the operands and the result; its columns and K.
struct HopperRows {
  TensorMap a, b, c;
  SegmentTable table;
  int n, k;
};

/// A block's tile: the expert, its first row and where the expert's end, its first column.
struct RowsTile {
  int expert, row, end, column;
};

/// The tiles that the clusters take in turn, each as high as all blocks of a cluster.
template <class T>
class RowsTiles {
 public:
  __device__ __forceinline__ explicit RowsTiles(const HopperRows& p)
      : p_(p), next_(static_cast<int>(blockIdx.x) / T::kCluster) {
    if constexpr (T::kCluster > 1) rank_ = ptx::cluster_rank();
  }
  [[nodiscard]] __device__ __forceinline__ int rank() const { return rank_; }
  /// By all lanes of a warp.
  __device__ __forceinline__ bool take(RowsTile& tile) {
    const int columns = (p_.n + T::kN - 1) / T::kN;
    const ExpertTile of = expert_tile<kRows>(p_.table, columns, next_);
    if (of.expert < 0) return false;
    next_ += static_cast<int>(gridDim.x) / T::kCluster;
    const TileAt at = tile_at(of.tile, (of.end - of.begin + kRows - 1) / kRows, columns);
    tile = {static_cast<int>(of.expert),
            static_cast<int>(of.begin + at.row * kRows) + rank_ * T::kM, static_cast<int>(of.end),
            static_cast<int>(at.column) * T::kN};
    return true;
  }

 private:
  static constexpr int kRows = T::kM * T::kCluster;
  const HopperRows& p_;
  int next_, rank_ = 0;
};

/// A box of weights, to all blocks of the cluster.
template <class T>
__device__ __forceinline__ void bring_box(bf16* to, const TensorMap& map, int inner, int outer,
                                          int expert, std::uint64_t* full) {
  if constexpr (T::kCluster > 1) {
    constexpr auto kAll = static_cast<std::uint16_t>((1 << T::kCluster) - 1);
    ptx::tma_load_3d_multicast(to, map, inner, outer, expert, full, kAll);
  } else {
    ptx::tma_load_3d(to, map, inner, outer, expert, full);
  }
}

/// This block's part of a tile of weights.
template <class T, bool kTransposeB>
__device__ __forceinline__ void bring_weights(bf16* tile, const TensorMap& map, int rank,
                                              const RowsTile& at, int k, std::uint64_t* full) {
  constexpr int kPart = T::kN / T::kCluster;
  tile += rank * kPart * T::kK;
  const int column = at.column + rank * kPart;
  if constexpr (kTransposeB) {
    bring_box<T>(tile, map, k, column, at.expert, full);
  } else {
#pragma unroll
    for (int block = 0; block < kPart / T::kSide; ++block)
      bring_box<T>(tile + block * T::kSide * T::kK, map, column + block * T::kSide, k, at.expert,
                   full);
  }
}

/// By one warp, whose first lane asks for what it found.
template <class T, bool kTransposeB>
__device__ __forceinline__ void produce_rows(typename T::Smem& s, const HopperRows& p) {
  const int steps = (p.k + T::kK - 1) / T::kK;
  Ring<T::kStages> ring;
  RowsTiles<T> tiles(p);
  for (RowsTile tile; tiles.take(tile);) {
    if (threadIdx.x != 0) continue;
    const bool has_rows = tile.row < tile.end;
    const int bytes = static_cast<int>(has_rows ? sizeof s.a[0] + sizeof s.b[0] : sizeof s.b[0]);
    for (int step = 0; step < steps; ++step, ring.advance()) {
      std::uint64_t* full = &s.full[ring.stage];
      ptx::mbarrier_wait(&s.empty[ring.stage], ring.parity ^ 1);
      ptx::mbarrier_arrive_expect_tx(full, bytes);
      if (has_rows) ptx::tma_load_2d(s.a[ring.stage], p.a, step * T::kK, tile.row, full);
      bring_weights<T, kTransposeB>(s.b[ring.stage], p.b, tiles.rank(), tile, step * T::kK, full);
    }
  }
}

/// By a warpgroup without rows.
template <class T>
__device__ __forceinline__ void skip_tile(typename T::Smem& s, Ring<T::kStages>& ring, int steps) {
  for (int step = 0; step < steps; ++step, ring.advance()) {
    ptx::mbarrier_wait(&s.full[ring.stage], ring.parity);
    release_stage<T>(&s.empty[ring.stage]);
  }
}

template <class T, bool kTransposeB>
__global__ void __launch_bounds__(T::kThreads, 1)
    grouped_sm90_kernel(const __grid_constant__ HopperRows p, const DirectSink<bf16> direct) {
  auto& s = smem<typename T::Smem>();
  const int group = static_cast<int>(threadIdx.x) / 128;
  begin_ring<T>(s, 1);

  if (group == 0) {
    ptx::decrease_registers<40>();
    if (threadIdx.x < 32) {
      ptx::prefetch_tensor_map(p.a);
      ptx::prefetch_tensor_map(p.b);
      produce_rows<T, kTransposeB>(s, p);
    }
    leave_cluster<T>();
    return;
  }

  ptx::increase_registers<232>();
  const int consumer = group - 1, steps = (p.k + T::kK - 1) / T::kK;
  Ring<T::kStages> ring;
  int buffer = 0;
  RowsTiles<T> tiles(p);
  for (RowsTile tile; tiles.take(tile);) {
    const int row = tile.row + consumer * 64;
    if (row >= tile.end) {
      skip_tile<T>(s, ring, steps);
      continue;
    }
    float sums[T::kN / 2];
    multiply_tile<T, false, kTransposeB>(sums, s, ring, consumer, steps, [](int, int) {});
    finish_sums<T::kN>({s.out[consumer], &p.c, consumer, buffer}, true, PlainEpilogue<bf16>(),
                       direct, sums, {row, tile.column}, {tile.end, p.n});
  }
  if (threadIdx.x % 128 == 0) ptx::bulk_wait<0>();
  leave_cluster<T>();
}

template <class T, bool kTransposeB>
void launch_rows(const GroupedGemmGpuArgs& args) {
  constexpr int kPart = T::kN / T::kCluster, kRows = T::kM * T::kCluster;
  const auto experts = static_cast<std::uint64_t>(args.experts),
             n = static_cast<std::uint64_t>(args.n), k = static_cast<std::uint64_t>(args.k);
  const std::uint64_t inner = kTransposeB ? k : n, outer = kTransposeB ? n : k;
  const DirectSink<bf16> direct = {
      {{static_cast<bf16*>(args.c), nullptr, nullptr}, {args.n, 0, 0}}, args.n, true};
  const HopperRows p = {
      matrix_map(args.a, args.rows, args.k, args.k, T::kM),
      tensor_map<3>({.base = static_cast<const bf16*>(args.b),
                     .dims = {inner, outer, experts},
                     .strides = {inner, inner * outer},
                     .box = {64, static_cast<std::uint32_t>(kTransposeB ? kPart : T::kK), 1}}),
      out_map<PlainEpilogue<bf16>>(direct.outputs, 0, args.rows, args.n),
      {args.begins, args.experts, args.sources},
      static_cast<int>(args.n),
      static_cast<int>(args.k)};
  // Each expert may have a tile that is not full.
  const std::int64_t tiles =
      (args.rows / kRows + min(args.experts, args.rows)) * blocks_for(args.n, T::kN);
  launch(grouped_sm90_kernel<T, kTransposeB>,
         hopper_launch<T>(args.exec, "grouped_gemm", min(tiles, clusters_of<T>(args))), p, direct);
}

/// Wide tiles where experts have rows for a cluster of them: those read less a sum. The bits are
/// the same.
template <bool kTransposeB>
void multiply_rows(const GroupedGemmGpuArgs& args) {
  constexpr int kRows = WideHopperTile::kM * WideHopperTile::kCluster;
  const std::int64_t tiles = args.rows / kRows * blocks_for(args.n, WideHopperTile::kN);
  if (args.rows >= args.experts * kRows && 2 * tiles >= args.multiprocessors)
    return launch_rows<WideHopperTile, kTransposeB>(args);
  launch_rows<NarrowHopperTile, kTransposeB>(args);
}

/// What TMA asks of operands, and a table of tiles that an int counts: by nothing that depends on
/// how many rows experts have, so that it does not decide about their bits.
bool serves(const GroupedGemmGpuArgs& args) {
  return args.type == DType::kBF16 && args.n % 8 == 0 && args.k % 8 == 0 &&
         args.n <= kLongestSide && args.k <= kLongestSide && aligned_to_16(args.a, args.b, args.c);
}

void multiply(const GroupedGemmGpuArgs& args) {
  args.transpose_b ? multiply_rows<true>(args) : multiply_rows<false>(args);
}

}  // namespace

const GroupedGemmHopperKernels grouped_gemm_sm90 = {
    {multiply, hopper_weights}, serves, hopper_serves_weights};

}  // namespace trireme::cuda
