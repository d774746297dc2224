#pragma once
// Tiles of gradients in f32 (sum_tiles.cuh) on their way from shared memory to global memory, where
// they are added. A block leaves by one reduction of TMA: a reduction for each row costs a
// multiprocessor 80 ns, whatever its bytes (measured on an H100).

#include "kernels/attention/attention_sm90.cuh"
#include "kernels/common/sum_tiles.cuh"

namespace trireme::cuda::attention {

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
