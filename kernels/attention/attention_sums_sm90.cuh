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

/// Those of keys that no query sees.
template <int kCount>
__device__ __forceinline__ void clear_sums(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = 0;
}

/// to = factor sums as bf16: a thread's elements of a wgmma tile, of the rows `row` and `row` + 8,
/// in a tile of kRows rows as heads stand in shared memory. `row` % 8 is the lane's eighth.
template <int kRows, int kCount>
__device__ __forceinline__ void store_rounded(bf16* to, int row, const float (&sums)[kCount],
                                              float factor) {
  const int lane = ptx::lane();
  bf16* const first = to + row * kBlockColumns + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < kCount / 4; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      store(reinterpret_cast<std::uint32_t*>(first + n / 8 * kBlockElements<kRows> +
                                             h * 8 * kBlockColumns + (n % 8 ^ lane / 4) * 8),
            Vector<std::uint32_t, 1>{
                {pack(factor * sums[n * 4 + h * 2], factor * sums[n * 4 + h * 2 + 1])}});
}

}  // namespace trireme::cuda::attention
