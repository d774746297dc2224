#pragma once
// Tiles of f32 sums on their way from wgmma's accumulators to TMA.
//
// A tile of kRows rows stands in shared memory in blocks of 32 columns, each with rows of 128 bytes
// in the 128-byte swizzle, 1024-byte aligned.

#include "kernels/common/ptx.cuh"
#include "kernels/common/vector.cuh"

namespace trireme::cuda {

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

}  // namespace trireme::cuda
