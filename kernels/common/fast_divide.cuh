#pragma once

#include "kernels/common/cuda.cuh"

namespace trireme::cuda {

/// n / divisor for 0 <= n < 2^31 by a multiplication and a shift (Granlund, Montgomery 1994): a
/// GPU's division by a number that is only known at run time costs twenty instructions.
class FastDivide {
 public:
  explicit FastDivide(std::int64_t divisor) : divisor_(static_cast<unsigned>(divisor)) {
    while ((std::uint64_t{1} << shift_) < divisor_) ++shift_;
    multiplier_ =
        static_cast<unsigned>((((std::uint64_t{1} << shift_) - divisor_) << 32) / divisor_ + 1);
  }
  __device__ __forceinline__ unsigned quotient(unsigned n) const {
    return (__umulhi(n, multiplier_) + n) >> shift_;
  }
  __device__ __forceinline__ unsigned remainder(unsigned n, unsigned quotient) const {
    return n - quotient * divisor_;
  }

 private:
  unsigned divisor_, multiplier_ = 0, shift_ = 0;
};

}  // namespace trireme::cuda
