#pragma once
// Tiles of heads in shared memory and their products by mma.sync, in bf16 with sums in f32.
//
// Of an accumulator lane l holds rows l/4 and l/4 + 8, of each eight columns 2 (l%4) and the next.

#include "kernels/attention/attention_mask.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/common/vector.cuh"

namespace trireme::cuda::attention {

inline constexpr int kThreads = 128, kWarps = kThreads / 32;
inline constexpr float kLog2E = 1.4426950408889634F, kLn2 = 0.6931471805599453F;

/// A row is stored in chunks of eight elements, permuted by row, so that the eight rows of a chunk
/// that ldmatrix reads lie in different banks: 8 / kSpread rows fill all banks once.
template <int kD>
struct Swizzle {
  static_assert(kD % 16 == 0);
  static constexpr int kChunks = kD / 8,
                       kSpread = kChunks % 8 == 0 ? 8 : (kChunks % 4 == 0 ? 4 : 2);
  static __device__ __forceinline__ int of_row(int row) { return row / (8 / kSpread) % kSpread; }
  /// The offset of a chunk in elements.
  static __device__ __forceinline__ int at(int row, int chunk) {
    return row * kD + (chunk ^ of_row(row)) * 8;
  }
};

/// Where a lane finds chunk `chunk` + lane_chunk (0 or 1) of its row: what depends on the lane is
/// apart from what the compiler knows, so that few addresses need a register.
template <int kD>
struct LaneRow {
  int offset, turn;
  __device__ __forceinline__ LaneRow(int row, int lane_chunk)
      : offset(row * kD), turn(lane_chunk ^ Swizzle<kD>::of_row(row)) {}
  /// row: a multiple of 8, chunk: even.
  __device__ __forceinline__ const bf16* at(const bf16* tile, int row, int chunk) const {
    constexpr int kTurns = Swizzle<kD>::kSpread - 1;
    return tile + (offset + (turn ^ (chunk & kTurns)) * 8) + row * kD + (chunk & ~kTurns) * 8;
  }
};

/// Rows of one head.
struct HeadRows {
  const bf16* data;
  std::int64_t stride;
};
__device__ __forceinline__ HeadRows head_rows(const AttentionHeads<const void>& heads,
                                              std::int64_t token, int head, int head_dim) {
  return {
      static_cast<const bf16*>(heads.data) + token * heads.stride + std::int64_t{head} * head_dim,
      heads.stride};
}
/// Whether each row of each head begins at a multiple of 16 bytes and holds whole chunks.
inline bool whole_chunks(const AttentionHeads<const void>& heads, std::int64_t head_dim) {
  return aligned_to_16(static_cast<const bf16*>(heads.data)) && heads.stride % 8 == 0 &&
         head_dim % 8 == 0;
}

/// Starts copies of kRows rows; those from `count` on and columns beyond the head are zero. Where
/// rows are not made of whole chunks the elements come one by one, at once. By all kBlock threads.
template <int kBlock = kThreads, int kD, int kRows>
__device__ __forceinline__ void load_tile(bf16 (&tile)[kRows][kD], const HeadRows& source,
                                          int index, int count, int head_dim, bool chunks) {
  const int thread = static_cast<int>(threadIdx.x);
  const bf16* first = source.data + index * source.stride;
  if (!chunks) {
#pragma unroll 1
    for (int i = thread; i < kRows * kD; i += kBlock) {
      const int row = i / kD, column = i % kD;
      (&tile[0][0])[Swizzle<kD>::at(row, column / 8) + column % 8] =
          row < count && column < head_dim ? first[row * source.stride + column]
                                           : from_float<bf16>(0);
    }
    return;
  }
  // kLanes neighbours share a row, so that a thread's chunks lie at constant distances. Not
  // unrolled: the sums leave few registers for addresses.
  constexpr int kLanes = Swizzle<kD>::kSpread, kStep = kBlock / kLanes;
  static_assert(kStep % 8 == 0);
#pragma unroll 1
  for (int row = thread / kLanes; row < kRows; row += kStep) {
    const int lane = thread % kLanes;
    bf16* to = &tile[0][0] + Swizzle<kD>::at(row, lane);
    const bf16* from = first + row * source.stride + lane * 8;
#pragma unroll
    for (int chunk = 0; chunk < kD / 8; chunk += kLanes) {
      const bool there = row < count && (lane + chunk) * 8 < head_dim;
      ptx::cp_async_16(to + chunk * 8, from + chunk * 8, there ? 16 : 0);
    }
  }
}

/// acc = A B^T for kRowTiles times 16 rows of A from `row` on and kColumns rows of B.
template <int kD, int kRowTiles, int kColumns>
__device__ __forceinline__ void product_of_rows(float (&acc)[kRowTiles][kColumns / 8][4],
                                                const bf16* a, int row, const bf16* b) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const LaneRow<kD> a_row(row + lane % 16, lane / 16),
      b_row(lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[m][n][e] = 0;
// At 192 in parts: of all steps at once too much is under way for the registers.
#pragma unroll(kD == 192 ? 4 : kD / 16)
  for (int k = 0; k < kD / 16; ++k) {
    std::uint32_t left[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) ptx::ldmatrix_x4(left[m], a_row.at(a, m * 16, k * 2));
#pragma unroll
    for (int n = 0; n < kColumns / 8; n += 2) {
      std::uint32_t right[4];
      ptx::ldmatrix_x4(right, b_row.at(b, n * 8, k * 2));
      const std::uint32_t right0[2] = {right[0], right[1]}, right1[2] = {right[2], right[3]};
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        ptx::mma_m16n8k16_bf16(acc[m][n], left[m], right0);
        ptx::mma_m16n8k16_bf16(acc[m][n + 1], left[m], right1);
      }
    }
  }
}

/// acc += W B: W an accumulator as bf16 pairs, B kColumns rows, of which kTake columns are taken.
template <int kD, int kTake, int kRowTiles, int kColumns>
__device__ __forceinline__ void add_weighted_rows(
    float (&acc)[kRowTiles][kTake / 8][4],
    const std::uint32_t (&weights)[kRowTiles][kColumns / 8][2], const bf16* b) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const LaneRow<kD> b_row(lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < kColumns / 16; ++k) {
#pragma unroll
    for (int n = 0; n < kTake / 8; n += 2) {
      std::uint32_t right[4];
      ptx::ldmatrix_x4_trans(right, b_row.at(b, k * 16, n));
      const std::uint32_t right0[2] = {right[0], right[1]}, right1[2] = {right[2], right[3]};
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        const std::uint32_t left[4] = {weights[m][2 * k][0], weights[m][2 * k][1],
                                       weights[m][2 * k + 1][0], weights[m][2 * k + 1][1]};
        ptx::mma_m16n8k16_bf16(acc[m][n], left, right0);
        ptx::mma_m16n8k16_bf16(acc[m][n + 1], left, right1);
      }
    }
  }
}

/// Over the four lanes that hold a row.
__device__ __forceinline__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
  return fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2));
}
__device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(kAllLanes, value, 1);
  return value + __shfl_xor_sync(kAllLanes, value, 2);
}

}  // namespace trireme::cuda::attention
