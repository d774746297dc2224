#pragma once
// The bf16 main loop for sm_80 and later: mma.sync on tiles that cp.async brings to a ring in
// shared memory. Operands whose rows are not 16-byte aligned are copied by element.

#include "kernels/common/ptx.cuh"
#include "kernels/gemm/gemm_tile.cuh"

namespace trireme::cuda {

/// A block's tile, cut among warps; kK columns of op(a) a step.
template <int kRows, int kColumns, int kWarpRows, int kWarpColumns, int kRing>
struct MmaTile {
  static constexpr int kM = kRows, kN = kColumns, kK = 32, kStages = kRing;
  static constexpr int kWarps = kWarpRows * kWarpColumns, kThreads = kWarps * 32;
  static constexpr int kColumnWarps = kWarpColumns;
  static constexpr int kWarpM = kM / kWarpRows, kWarpN = kN / kWarpColumns;
  static_assert(kWarpM % 16 == 0 && kWarpN % 16 == 0);
  struct Smem {
    alignas(128) bf16 a[kStages][kM * kK];
    alignas(128) bf16 b[kStages][kN * kK];
  };
};
using LargeMmaTile = MmaTile<128, 128, 2, 4, 4>;
using SmallMmaTile = MmaTile<64, 64, 2, 2, 4>;

/// An operand's tile in shared memory: rows of 16-byte chunks, along k ([kMn][kK]) or, where
/// kMnInner, along the other side ([kK][kMn]); chunks permuted so that the eight rows that one
/// ldmatrix reads lie in different banks.
template <int kMn, int kK, bool kMnInner>
struct OperandTile {
  static constexpr int kRows = kMnInner ? kK : kMn, kChunks = (kMnInner ? kMn : kK) / 8;

  __device__ __forceinline__ static int element(int row, int chunk) {
    const int permuted = kChunks == 4 ? chunk ^ (row / 2 % 4) : chunk ^ (row % 8);
    return (row * kChunks + permuted) * 8;
  }

  /// `source` gives where a column (or row) of the tile stands in the operand, or -1.
  template <int kThreads, class Source>
  __device__ __forceinline__ static void load_step(bf16* tile, const bf16* global,
                                                   std::int64_t mn_count, std::int64_t k0,
                                                   std::int64_t k_count, bool wide, Source source) {
    static_assert(kRows * kChunks % kThreads == 0);
#pragma unroll
    for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
      const int index = i * kThreads + static_cast<int>(threadIdx.x);
      const int row = index / kChunks, chunk = index % kChunks;
      const std::int64_t mn = source(kMnInner ? chunk * 8 : row);
      const std::int64_t k = k0 + (kMnInner ? row : chunk * 8);
      const std::int64_t rest = kMnInner ? mn_count - mn : k_count - k;
      const bool inside = mn >= 0 && k < k_count;
      const bf16* from = global + (kMnInner ? k * mn_count + mn : mn * k_count + k);
      bf16* to = tile + element(row, chunk);
      if (wide) {
        ptx::cp_async_16(to, inside ? from : global, inside ? 16 : 0);
        continue;
      }
      Vector<bf16, 8> values;
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        values.at[e] = inside && e < rest ? from[e] : from_float<bf16>(0.0F);
      }
      store(to, values);
    }
  }
};

/// 16 rows of op(a), 16 columns of k, in the lanes' order for mma.
template <int kMn, int kK, bool kMnInner>
__device__ __forceinline__ void load_a(std::uint32_t (&fragment)[4], const bf16* tile, int row,
                                       int k) {
  using Tile = OperandTile<kMn, kK, kMnInner>;
  const int lane = static_cast<int>(threadIdx.x) % 32, low = lane % 8, second = lane / 8 % 2,
            fourth = lane / 16;
  if constexpr (kMnInner) {
    ptx::ldmatrix_x4_trans(fragment, tile + Tile::element(k + fourth * 8 + low, row / 8 + second));
  } else {
    ptx::ldmatrix_x4(fragment, tile + Tile::element(row + second * 8 + low, k / 8 + fourth));
  }
}
/// 16 columns of op(b), 16 rows of k: elements 0, 1 for the first eight columns, 2, 3 for the rest.
template <int kMn, int kK, bool kMnInner>
__device__ __forceinline__ void load_b(std::uint32_t (&fragment)[4], const bf16* tile, int column,
                                       int k) {
  using Tile = OperandTile<kMn, kK, kMnInner>;
  const int lane = static_cast<int>(threadIdx.x) % 32, low = lane % 8, second = lane / 8 % 2,
            fourth = lane / 16;
  if constexpr (kMnInner) {
    ptx::ldmatrix_x4_trans(fragment,
                           tile + Tile::element(k + second * 8 + low, column / 8 + fourth));
  } else {
    ptx::ldmatrix_x4(fragment, tile + Tile::element(column + fourth * 8 + low, k / 8 + second));
  }
}

/// Element e of a warp's [i][j]: row 16 i + lane / 4 + 8 (e / 2), column 8 j + 2 (lane % 4) + e %
/// 2.
template <class T>
struct MmaSums {
  float at[T::kWarpM / 16][T::kWarpN / 8][4];
};

/// Hands a warp's sums to the epilogue. `row`, `column`: of its tile in the result.
template <class T, class E>
__device__ __forceinline__ void finish_warp(const MmaSums<T>& sums, const E& epilogue,
                                            const DirectSink<typename E::Out>& sink,
                                            std::int64_t row, std::int64_t column,
                                            std::int64_t rows, std::int64_t columns) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kStep = E::kDual ? 2 : 1;
#pragma unroll
  for (int j = 0; j < T::kWarpN / 8; j += kStep) {
    const std::int64_t c = column + j / kStep * 8 + lane % 4 * 2;
    if (c >= columns) continue;
    const auto state = epilogue.column(c);
#pragma unroll
    for (int i = 0; i < T::kWarpM / 16; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::int64_t r = row + i * 16 + lane / 4 + half * 8;
        if (r >= rows) continue;
        const float* sum = &sums.at[i][j][half * 2];
        if constexpr (E::kDual) {
          const float* other = &sums.at[i][j + 1][half * 2];
          epilogue(sink, r, c, state, epilogue.load(r, c), {sum[0], sum[1]}, {other[0], other[1]});
        } else {
          epilogue(sink, r, c, state, epilogue.load(r, c), {sum[0], sum[1]});
        }
      }
    }
  }
}

/// Where a warp's sums stand in the block's tile.
template <class T>
__device__ __forceinline__ TileAt warp_at() {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  return {warp / T::kColumnWarps * T::kWarpM, warp % T::kColumnWarps * T::kWarpN};
}

/// Adds a tile's products over K to `sums`. `source_a`, `source_b`: which row of op(a), column of
/// op(b) stands at one of the tile, or -1. A warp that does not `work` loads tiles alone. Threads
/// that read `shared` before must have passed a barrier.
template <class T, bool kTransposeA, bool kTransposeB, class SourceA, class SourceB>
__device__ __forceinline__ void multiply_mma(MmaSums<T>& sums, typename T::Smem& shared,
                                             const Product<bf16>& product, bool works,
                                             const SourceA& source_a, const SourceB& source_b) {
  using TileA = OperandTile<T::kM, T::kK, kTransposeA>;
  using TileB = OperandTile<T::kN, T::kK, !kTransposeB>;
  const auto load_stage = [&](std::int64_t step) {
    const int stage = static_cast<int>(step % T::kStages);
    TileA::template load_step<T::kThreads>(shared.a[stage], product.a, product.m, step * T::kK,
                                           product.k, product.wide_a, source_a);
    TileB::template load_step<T::kThreads>(shared.b[stage], product.b, product.n, step * T::kK,
                                           product.k, product.wide_b, source_b);
  };
  const int warp_row = static_cast<int>(warp_at<T>().row),
            warp_column = static_cast<int>(warp_at<T>().column);
  const std::int64_t steps = (product.k + T::kK - 1) / T::kK;
#pragma unroll
  for (int step = 0; step < T::kStages - 1; ++step) {
    if (step < steps) load_stage(step);
    ptx::cp_async_commit();
  }
  for (std::int64_t step = 0; step < steps; ++step) {
    ptx::cp_async_wait<T::kStages - 2>();
    __syncthreads();  // this step's tiles have arrived; the last step's are no longer read
    if (step + T::kStages - 1 < steps) load_stage(step + T::kStages - 1);
    ptx::cp_async_commit();
    if (!works) continue;
    const int stage = static_cast<int>(step % T::kStages);
#pragma unroll
    for (int k = 0; k < T::kK; k += 16) {
      std::uint32_t a[T::kWarpM / 16][4];
#pragma unroll
      for (int i = 0; i < T::kWarpM / 16; ++i)
        load_a<T::kM, T::kK, kTransposeA>(a[i], shared.a[stage], warp_row + i * 16, k);
#pragma unroll
      for (int j = 0; j < T::kWarpN / 16; ++j) {
        std::uint32_t b[4];
        load_b<T::kN, T::kK, !kTransposeB>(b, shared.b[stage], warp_column + j * 16, k);
#pragma unroll
        for (int i = 0; i < T::kWarpM / 16; ++i) {
          ptx::mma_m16n8k16_bf16(sums.at[i][2 * j], a[i], {b[0], b[1]});
          ptx::mma_m16n8k16_bf16(sums.at[i][2 * j + 1], a[i], {b[2], b[3]});
        }
      }
    }
  }
  ptx::cp_async_wait<0>();
}

template <class T, bool kTransposeA, bool kTransposeB, class E>
__global__ void __launch_bounds__(T::kThreads)
    gemm_mma_kernel(const Product<bf16> product, const E epilogue,
                    const DirectSink<typename E::Out> sink) {
  constexpr int kRun = 8;  // columns of one product beside each other, where there are two
  static_assert(!E::kDual || kTransposeB, "two products want weights of [N, K]");
  constexpr int kResultN = E::kDual ? T::kN / 2 : T::kN;
  const std::int64_t columns = E::kDual ? product.n / 2 : product.n;
  const TileAt tile =
      tile_at(blockIdx.x, (product.m + T::kM - 1) / T::kM, (columns + kResultN - 1) / kResultN);
  const std::int64_t row0 = tile.row * T::kM, row = row0 + warp_at<T>().row;
  const std::int64_t column = tile.column * kResultN + warp_at<T>().column / (E::kDual ? 2 : 1);
  const bool works = row < product.m && column < columns;
  MmaSums<T> sums = {};
  multiply_mma<T, kTransposeA, kTransposeB>(
      sums, smem<typename T::Smem>(), product, works,
      [&](int m) { return row0 + m < product.m ? row0 + m : -1; },
      [&](int n) { return source_column<E::kDual, kRun, T::kN>(tile.column, n, product.n); });
  if (works) finish_warp<T>(sums, epilogue, sink, row, column, product.m, columns);
}

}  // namespace trireme::cuda
