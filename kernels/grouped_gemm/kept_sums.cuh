#pragma once
// Gradients of experts' weights: sums of segments that wait for others.

#include "kernels/common/cuda.cuh"

namespace trireme::cuda {

/// Sums of segments that wait for those of later ones, each thread's own, level after level of a
/// block. Segments are added as a counter carries: level l waits with a sum of 2^l of them where
/// bit l of the next one's number is set, or without, where they had no rows.
template <class Sums, int kThreads>
class KeptSums {
 public:
  static constexpr int kCount = sizeof(Sums) / sizeof(float);
  /// Of one thread of a block's kThreads, for the segments of one tile after another's.
  __device__ __forceinline__ KeptSums(float* all, int levels, int thread)
      : own_(all + std::int64_t{blockIdx.x} * levels * kCount * kThreads + thread),
        levels_(levels) {}

  /// Hands on a segment's sums, where it has any. True where these are now what all segments up
  /// to the last have given.
  __device__ __forceinline__ bool carry(Sums& sums, std::int64_t segment, bool last, bool given) {
    for (int level = 0; level < levels_; ++level) {
      if ((segment >> level) % 2 != 0) {
        if ((waiting_ >> level) % 2 != 0) {
          add_to(sums, level);
          given = true;
        }
        waiting_ &= ~(1U << level);
      } else if (!last) {
        if (given) {
          put(level, sums);
          waiting_ |= 1U << level;
        }
        break;
      }
    }
    return given;
  }

 private:
  __device__ __forceinline__ void put(int level, const Sums& sums) {
    const auto* from = reinterpret_cast<const float*>(&sums);
#pragma unroll
    for (int i = 0; i < kCount; ++i) own_[(level * kCount + i) * kThreads] = from[i];
  }
  __device__ __forceinline__ void add_to(Sums& sums, int level) const {
    auto* to = reinterpret_cast<float*>(&sums);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      to[i] = own_[(level * kCount + i) * kThreads] + to[i];
    }
  }

  float* own_;
  int levels_;
  unsigned waiting_ = 0;
};

}  // namespace trireme::cuda
