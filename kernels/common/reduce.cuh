#pragma once
// Sums and maxima over a warp or a block, in a fixed order: the same bits on every run.

#include "kernels/common/cuda.cuh"

namespace trireme::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffU;

/// Every lane gets the result; all 32 lanes call.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  return value;
}
/// Likewise, or of each kLanes neighbours by themselves.
template <int kLanes = 32>
__device__ __forceinline__ unsigned warp_max(unsigned value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2)
    value = max(value, __shfl_xor_sync(kAllLanes, value, offset));
  return value;
}

/// All kThreads threads get the sum; each call in a kernel needs its own partials, or a barrier.
template <class T, int kThreads>
__device__ __forceinline__ T block_sum(T value, T (&partials)[kThreads / 32]) {
  static_assert(kThreads % 32 == 0 && kThreads <= 1024);
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32] = value;
  __syncthreads();
  T sum = partials[0];
#pragma unroll
  for (int warp = 1; warp < kThreads / 32; ++warp) sum += partials[warp];
  return sum;
}

}  // namespace trireme::cuda
