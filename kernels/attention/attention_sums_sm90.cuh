#pragma once
// Tiles of gradients in f32 on Hopper: from accumulators to shared memory, and from there, added,
// to global memory.
//
// A tile of kRows tokens stands in blocks of 32 columns, each with rows of 128 bytes in the
// 128-byte swizzle, 1024-byte aligned. A block leaves by one reduction of TMA: a reduction for each
// row costs a multiprocessor 80 ns, whatever its bytes (measured on an H100).

#include "kernels/attention/attention_sm90.cuh"

namespace trireme::cuda::attention {

inline constexpr int kSumColumns = 32;  ///< of a block

/// Floats from one block of a tile to the next.
template <int kRows>
inline constexpr int kSumBlock = int{kRows} * kSumColumns;

/// to = factor sums: the thread's elements of a wgmma tile, of the rows `row` and `row` + 8, from
/// the block `to` on. `row` % 8 is the lane's eighth of a warp.
template <int kRows, int kCount>
__device__ __forceinline__ void store_sums(float* to, int row, const float (&sums)[kCount],
                                           float factor) {
  // Chunks of 16 bytes of the rows 2 i and 2 i + 1 share banks, so that the odd rows come with
  // another one: half a warp finds 16 pairs of banks.
  const int lane = ptx::lane(), eighth = lane / 4, other = eighth % 2 * 2;
  const int chunk = (lane % 4 / 2) ^ eighth ^ other * 2;
  float* const first = to + row * kSumColumns + lane % 2 * 2;
#pragma unroll
  for (int n = 0; n < kCount / 4; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = n * 4 + h * 2, j = (n ^ 2) * 4 + h * 2;
      const float low = other != 0 ? sums[j] : sums[i],
                  high = other != 0 ? sums[j + 1] : sums[i + 1];
      store(first + n / 4 * kSumBlock<kRows> + h * 8 * kSumColumns + (chunk ^ n % 4 * 2) * 4,
            Vector<float, 2>{{factor * low, factor * high}});
    }
}

/// Where a tile of sums belongs.
struct SumsTo {
  const TensorMap& map;
  HeadAt at;
  float* first;         ///< of its first token the head's first element
  std::int64_t stride;  ///< from token to token
  int count;            ///< tokens
  bool by_map;          ///< as many as a box has, or up to the sequence's end, where a map ends too
};

/// The tile's tokens in a tensor of heads.
__device__ __forceinline__ SumsTo sums_to(const TensorMap& map, const AttentionHeads<float>& heads,
                                          const HeadAt& at, std::int64_t tokens,
                                          std::int64_t head_dim, int count, int rows) {
  const std::int64_t row = at.sequence * tokens + at.token;
  return {map,          at,    heads.data + row * heads.stride + at.head * head_dim,
          heads.stride, count, count == rows || at.token + count == tokens};
}

/// One whole warp: a block, whose columns are the head's from `column` on, is added to `to`. What
/// the first lane asked of TMA is neither committed nor waited for.
__device__ __forceinline__ void add_sums(const SumsTo& to, const float* block, int column,
                                         std::int64_t head_dim) {
  const int lane = ptx::lane();
  if (to.by_map) {
    if (lane == 0 && column < head_dim)
      ptx::tma_add_4d(to.map, column, to.at.head, to.at.token, to.at.sequence, block);
    return;
  }
  // The rows behind belong to other tokens, to which not even zeros may be added.
  if (column + lane >= head_dim) return;
  float* at = to.first + column + lane;
#pragma unroll 1
  for (int row = 0; row < to.count; ++row, at += to.stride)
    atomicAdd(at, block[row * kSumColumns + (lane / 4 ^ row % 8) * 4 + lane % 4]);
}

}  // namespace trireme::cuda::attention
