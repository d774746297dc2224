#pragma once
// The bf16 main loop for Hopper: a producer thread brings tiles by TMA to a ring in shared memory,
// two warpgroups multiply them by wgmma, blocks stay and take tile after tile. Results leave
// through shared memory and TMA.

#include "kernels/gemm/gemm_sm90_stages.cuh"

namespace trireme::cuda {

/// A cluster's kBlocks blocks compute tiles below each other and share b's, each bringing a part.
template <int kColumns, int kRing, int kBlocks>
struct HopperTile {
  static constexpr int kCluster = kBlocks;
  static constexpr int kM = 128, kN = kColumns, kK = 64, kStages = kRing;
  static constexpr int kConsumers = 2, kThreads = 128 * (1 + kConsumers);
  static constexpr int kSide =
      64;  ///< of a tile on its way out, and of a transposed operand's blocks
  struct Smem {
    alignas(1024) bf16 a[kStages][kM * kK];  // rows of 128 bytes, 128-byte swizzle; so are all
    alignas(1024) bf16 b[kStages][kN * kK];
    alignas(1024) bf16 out[kConsumers][2][kSide][kSide];
    std::uint64_t full[kStages], empty[kStages];
  };
};
using WideHopperTile = HopperTile<256, 4, 2>;
using NarrowHopperTile = HopperTile<128, 6, 1>;

/// Maps of the operands and of the outputs that TMA stores; sizes of the result and of the sum.
struct HopperProduct {
  TensorMap a, b, out[3];
  bool by_tma;
  int m, n, k;
};

/// Columns of the result that a tile makes.
template <class T, class E>
inline constexpr int kResultColumns = E::kDual ? T::kN / 2 : T::kN;

/// The tiles that the clusters take in turn, each as high as all blocks of a cluster.
template <class T, class E>
struct HopperTiles {
  static constexpr int kRows = T::kM * T::kCluster;
  int rows, columns, next, stride, rank = 0;

  __device__ __forceinline__ explicit HopperTiles(const HopperProduct& p)
      : rows((p.m + kRows - 1) / kRows),
        columns((p.n + kResultColumns<T, E> - 1) / kResultColumns<T, E>),
        next(static_cast<int>(blockIdx.x) / T::kCluster),
        stride(static_cast<int>(gridDim.x) / T::kCluster) {
    if constexpr (T::kCluster > 1) rank = ptx::cluster_rank();
  }
  /// Where this block's next one begins in the result.
  __device__ __forceinline__ bool take(int& row, int& column) {
    if (next >= rows * columns) return false;
    const TileAt tile = tile_at(next, rows, columns);
    row = static_cast<int>(tile.row) * kRows + rank * T::kM;
    column = static_cast<int>(tile.column) * kResultColumns<T, E>;
    next += stride;
    return true;
  }
};

// ---- the producer ----

/// An operand's tile for one step: one box where rows run along k, else boxes of 64 columns.
template <class T, int kMn, bool kAlongK>
__device__ __forceinline__ void bring(bf16* tile, const TensorMap& map, int mn, int k,
                                      std::uint64_t* full) {
  if constexpr (kAlongK) {
    ptx::tma_load_2d(tile, map, k, mn, full);
  } else {
#pragma unroll
    for (int block = 0; block < kMn / T::kSide; ++block)
      ptx::tma_load_2d(tile + block * T::kSide * T::kK, map, mn + block * T::kSide, k, full);
  }
}

/// This block's part of a tile of b, to all blocks of the cluster.
template <class T, bool kTransposeB, class E>
__device__ __forceinline__ void bring_b(bf16* tile, const TensorMap& map, int rank, int column,
                                        int k, std::uint64_t* full) {
  constexpr int kPart = T::kN / T::kCluster;
  constexpr auto kAll = static_cast<std::uint16_t>((1 << T::kCluster) - 1);
  tile += rank * kPart * T::kK;
  if constexpr (E::kDual) {  // eight columns of one product, the same of the other, and so on
    const int eights = column / 8 + rank * (kPart / 16);
    if constexpr (T::kCluster > 1) {
      ptx::tma_load_4d_multicast(tile, map, k, 0, 0, eights, full, kAll);
    } else {
      ptx::tma_load_4d(tile, map, k, 0, 0, eights, full);
    }
  } else if constexpr (T::kCluster == 1) {
    bring<T, kPart, kTransposeB>(tile, map, column, k, full);
  } else if constexpr (kTransposeB) {
    ptx::tma_load_2d_multicast(tile, map, k, column + rank * kPart, full, kAll);
  } else {
#pragma unroll
    for (int block = 0; block < kPart / T::kSide; ++block) {
      ptx::tma_load_2d_multicast(tile + block * T::kSide * T::kK, map,
                                 column + rank * kPart + block * T::kSide, k, full, kAll);
    }
  }
}

template <class T, bool kTransposeA, bool kTransposeB, class E>
__device__ __forceinline__ void produce(typename T::Smem& s, const HopperProduct& p) {
  const int steps = (p.k + T::kK - 1) / T::kK;
  Ring<T::kStages> ring;
  HopperTiles<T, E> tiles(p);
  for (int row, column; tiles.take(row, column);) {
    for (int step = 0; step < steps; ++step, ring.advance()) {
      std::uint64_t* full = &s.full[ring.stage];
      ptx::mbarrier_wait(&s.empty[ring.stage], ring.parity ^ 1);
      ptx::mbarrier_arrive_expect_tx(full, static_cast<int>(sizeof s.a[0] + sizeof s.b[0]));
      bring<T, T::kM, !kTransposeA>(s.a[ring.stage], p.a, row, step * T::kK, full);
      bring_b<T, kTransposeB, E>(s.b[ring.stage], p.b, tiles.rank, column, step * T::kK, full);
    }
  }
}

// ---- the consumers ----

template <int kTransposed, int kTransposedB>
__device__ __forceinline__ void wgmma_step(float (&sums)[64], std::uint64_t a, std::uint64_t b,
                                           bool accumulate) {
  ptx::wgmma_m64n128k16_bf16<kTransposed, kTransposedB>(sums, a, b, accumulate);
}
template <int kTransposed, int kTransposedB>
__device__ __forceinline__ void wgmma_step(float (&sums)[128], std::uint64_t a, std::uint64_t b,
                                           bool accumulate) {
  ptx::wgmma_m64n256k16_bf16<kTransposed, kTransposedB>(sums, a, b, accumulate);
}

/// Element e of 64 rows: row 16 warp + lane / 4 + 8 (e / 2 % 2), column 8 (e / 4) + 2 (lane % 4) +
/// e % 2.
/// `prepare` runs between a step's arrival and its products.
template <class T, bool kTransposeA, bool kTransposeB, class Prepare>
__device__ __forceinline__ void multiply_tile(float (&sums)[T::kN / 2], typename T::Smem& s,
                                              Ring<T::kStages>& ring, int consumer, int steps,
                                              const Prepare& prepare) {
  constexpr int kBlockBytes = T::kSide * T::kK * static_cast<int>(sizeof(bf16));
  std::uint64_t* release = nullptr;  // the stage whose wgmmas were committed one step ago
  for (int step = 0; step < steps; ++step, ring.advance()) {
    ptx::mbarrier_wait(&s.full[ring.stage], ring.parity);
    prepare(ring.stage, step);
    // 64 rows of a are 64 rows in shared memory, or one block of 64 columns: as many bytes.
    const bf16* rows = s.a[ring.stage] + consumer * 64 * T::kK;
    const std::uint64_t a = kTransposeA ? ptx::wgmma_descriptor_sw128_mn(rows, kBlockBytes)
                                        : ptx::wgmma_descriptor_sw128(rows);
    const std::uint64_t b = kTransposeB
                                ? ptx::wgmma_descriptor_sw128(s.b[ring.stage])
                                : ptx::wgmma_descriptor_sw128_mn(s.b[ring.stage], kBlockBytes);
    // 16 columns of k: 32 bytes along a row, or 16 rows. In descriptors' units of 16 bytes.
    constexpr int kStepA = kTransposeA ? 128 : 2, kStepB = kTransposeB ? 2 : 128;
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < T::kK / 16; ++i) {
      wgmma_step<kTransposeA ? 1 : 0, kTransposeB ? 0 : 1>(sums, a + i * kStepA, b + i * kStepB,
                                                           step > 0 || i > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>(sums);
    if (release != nullptr) release_stage<T>(release);
    release = &s.empty[ring.stage];
  }
  ptx::wgmma_wait<0>(sums);
  release_stage<T>(release);
}

template <class T, bool kTransposeA, bool kTransposeB, class E>
__global__ void __launch_bounds__(T::kThreads, 1)
    gemm_sm90_kernel(const __grid_constant__ HopperProduct p, const E epilogue,
                     const DirectSink<typename E::Out> direct) {
  auto& s = smem<typename T::Smem>();
  const int group = static_cast<int>(threadIdx.x) / 128;
  begin_ring<T>(s, 1);

  if (group == 0) {
    ptx::decrease_registers<40>();
    if (threadIdx.x == 0) {
      ptx::prefetch_tensor_map(p.a);
      ptx::prefetch_tensor_map(p.b);
      produce<T, kTransposeA, kTransposeB, E>(s, p);
    }
    leave_cluster<T>();
    return;
  }

  ptx::increase_registers<232>();
  const int consumer = group - 1, steps = (p.k + T::kK - 1) / T::kK;
  Ring<T::kStages> ring;
  int buffer = 0;
  HopperTiles<T, E> tiles(p);
  for (int row, column0; tiles.take(row, column0);) {
    float sums[T::kN / 2];
    multiply_tile<T, kTransposeA, kTransposeB>(sums, s, ring, consumer, steps, [](int, int) {});
    const int row0 = row + consumer * 64;
    if (row0 >= p.m) continue;
    finish_sums<kResultColumns<T, E>>({s.out[consumer], p.out, consumer, buffer}, p.by_tma,
                                      epilogue, direct, sums, {row0, column0}, {p.m, p.n});
  }
  if (threadIdx.x % 128 == 0) ptx::bulk_wait<0>();
  leave_cluster<T>();
}

// ---- launching ----

/// In a file of its own.
void hopper_and_activation(const GemmGpuArgs& args);

template <class T, bool kTransposeA, bool kTransposeB, class E>
void launch_hopper_tile(const GemmGpuArgs& args, const E& epilogue) {
  HopperProduct p;
  p.m = static_cast<int>(args.m);
  p.n = static_cast<int>(result_columns(args));
  p.k = static_cast<int>(args.k);
  p.a = kTransposeA ? matrix_map(args.a, args.k, args.m, args.m, T::kK)
                    : matrix_map(args.a, args.m, args.k, args.k, T::kM);
  if constexpr (E::kDual) {
    const auto k = static_cast<std::uint64_t>(args.k), half = static_cast<std::uint64_t>(p.n);
    p.b = tensor_map<4>({.base = static_cast<const bf16*>(args.b),
                         .dims = {k, 8, 2, half / 8},
                         .strides = {k, k * half, k * 8},
                         .box = {64, 8, 2, T::kN / T::kCluster / 16}});
  } else {
    p.b = kTransposeB ? matrix_map(args.b, args.n, args.k, args.k, T::kN / T::kCluster)
                      : matrix_map(args.b, args.k, args.n, args.n, T::kK);
  }
  const DirectSink<typename E::Out> direct = direct_sink(args, epilogue);
  p.by_tma = leaves_by_tma(args, epilogue, p.n);
  for (int i = 0; i < 3; ++i) {
    p.out[i] = p.by_tma && direct.outputs.at[i] != nullptr
                   ? out_map<E>(direct.outputs, i, args.m, p.n)
                   : p.a;
  }
  const std::int64_t tiles = blocks_for(args.m, T::kM * T::kCluster) * blocks_for(args.n, T::kN);
  const int clusters = max(args.multiprocessors / T::kCluster, 1);
  launch(gemm_sm90_kernel<T, kTransposeA, kTransposeB, E>,
         {.grid = static_cast<unsigned>(min(tiles, std::int64_t{clusters})) * T::kCluster,
          .block = T::kThreads,
          .smem_bytes = sizeof(typename T::Smem),
          .stream = stream_of(args.exec),
          .name = "gemm",
          .cluster = T::kCluster},
         p, epilogue, direct);
}

/// Wide tiles read less a sum; narrow ones where the wide would leave multiprocessors idle.
template <bool kTransposeA, bool kTransposeB, class E>
void launch_hopper(const GemmGpuArgs& args, const E& epilogue) {
  if (args.m > 128 &&
      blocks_for(args.m, 256) * blocks_for(args.n, 256) * 2 >= args.multiprocessors) {
    launch_hopper_tile<WideHopperTile, kTransposeA, kTransposeB>(args, epilogue);
  } else {
    launch_hopper_tile<NarrowHopperTile, kTransposeA, kTransposeB>(args, epilogue);
  }
}

}  // namespace trireme::cuda
