#pragma once
// What both passes of the norm's CUDA kernels share.
//
// A row stands in registers as it was loaded (bf16 stays packed): kVectors accesses of 16 bytes for
// each of the threads that share it. They are a warp or a block. Rows that are longer, or not
// aligned, are read again for each pass over them (from L1 and L2, mostly).

#include "kernels/common/reduce.cuh"
#include "kernels/common/turns.cuh"
#include "kernels/norm/norm_table.h"

namespace trireme::cuda {

enum class NormKind { kRms, kLayer };

/// Threads of a block whose warps take rows of their own.
inline constexpr int kNormWarpBlock = 128;

/// Which row this thread works on, and as which of its threads.
template <int kThreads>
struct RowPlace {
  static constexpr int kBlock = kThreads == 32 ? kNormWarpBlock : kThreads;
  static constexpr int kRows = kBlock / kThreads;  ///< of a block at a time
  int row = static_cast<int>(threadIdx.x) / kThreads;
  int thread = static_cast<int>(threadIdx.x) % kThreads;
};

struct NormSums {
  float gn, g;  ///< sums over a row of g n and of g
};

__device__ __forceinline__ NormSums operator+(NormSums a, NormSums b) {
  return {a.gn + b.gn, a.g + b.g};
}

/// For each of a row's threads the sum over them. `partials` are free after the row's next barrier.
template <int kThreads>
__device__ __forceinline__ float row_sum(float value, float (&partials)[kThreads / 32]) {
  if constexpr (kThreads == 32) {
    return warp_sum(value);
  } else {
    return block_sum<float, kThreads>(value, partials);
  }
}
template <int kThreads>
__device__ __forceinline__ NormSums row_sum(NormSums value, NormSums (&partials)[kThreads / 32]) {
  value = {warp_sum(value.gn), warp_sum(value.g)};
  if constexpr (kThreads > 32) {
    if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32] = value;
    __syncthreads();
    value = partials[0];
#pragma unroll
    for (int warp = 1; warp < kThreads / 32; ++warp) value = value + partials[warp];
  }
  return value;
}

/// y of the forward pass; the backward pass makes the same bits by the same operations.
template <NormKind kKind>
__device__ __forceinline__ float normalised(float s, float mean, float rstd) {
  if constexpr (kKind == NormKind::kRms) return s * rstd;
  return (s - mean) * rstd;
}
template <NormKind kKind>
__device__ __forceinline__ float scaled(float n, float weight, bool has_bias, float bias) {
  if (kKind == NormKind::kLayer && has_bias) return fmaf(n, weight, bias);
  return n * weight;
}

template <class T>
__device__ __forceinline__ T* row_of(void* matrix, std::int64_t row, std::int64_t channels) {
  return static_cast<T*>(matrix) + row * channels;
}
template <class T>
__device__ __forceinline__ const T* row_of(const void* matrix, std::int64_t row,
                                           std::int64_t channels) {
  return static_cast<const T*>(matrix) + row * channels;
}

/// body(v, column) for the vectors of a row in registers that this thread holds.
template <int kThreads, int kVectors, int kWidth, class Body>
__device__ __forceinline__ void for_vectors(int thread, std::int64_t channels, Body body) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = (v * kThreads + thread) * kWidth;
    if (column < channels) body(v, column);
  }
}

/// finish(column, load(column)) for the groups of kWidth columns of a long row, some loads ahead.
template <int kThreads, int kWidth, class Load, class Finish>
__device__ __forceinline__ void for_long_row(int thread, std::int64_t channels, Load load,
                                             Finish finish) {
  in_turns<4>(std::int64_t{thread} * kWidth, kThreads * kWidth, channels, load, finish);
}

void norm_rms_backward(const NormBackwardArgs& args);
void norm_layer_backward(const NormBackwardArgs& args);
std::int64_t norm_backward_scratch_floats(const NormBackwardArgs& args);

}  // namespace trireme::cuda
