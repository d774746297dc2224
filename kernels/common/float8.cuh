#pragma once
// fp8 on a GPU: the steps of base/float8.h, and a GPU's own instruction where it has one, which
// gives the same codes.

#include "base/float8.h"
#include "kernels/common/ptx.cuh"

namespace trireme::cuda {

__device__ __forceinline__ std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}
__device__ __forceinline__ float float_of_bits(std::uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

/// As to_f8. A magnitude's last bits are rounded away where a number is added whose own last bit is
/// that of the code.
template <class Format>
__device__ __forceinline__ std::uint32_t f8_code(float value) {
  constexpr std::uint32_t kExponent = 0x7f800000U, kToMagic = Format::kMagic - Format::kMinNormal;
  constexpr std::uint32_t kLargest = (Format::kLargest + Format::kRebias)
                                     << Format::kShift;  // bits of that value
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t magnitude = min(bits & 0x7fffffffU, kLargest);
  const std::uint32_t exponent = max(magnitude & kExponent, Format::kMinNormal);
  const std::uint32_t magic = exponent + kToMagic;
  const std::uint32_t sum = bits_of(__fadd_rn(float_of_bits(magnitude), float_of_bits(magic)));
  const std::uint32_t code = sum - magic + ((exponent - Format::kMinNormal) >> Format::kShift);
  return (bits & 0x7fffffffU) > kExponent ? Format::kNan : (code | (bits >> 24 & 0x80U));
}

/// Codes of two values, the first in the lower byte.
template <class F8>
__device__ __forceinline__ std::uint32_t f8_pair(float low, float high) {
#if TRIREME_DEVICE && __CUDA_ARCH__ >= 890
  return F8::Format::kFractionBits == 3 ? ptx::e4m3_pair(low, high) : ptx::e5m2_pair(low, high);
#else
  using Format = typename F8::Format;
  return f8_code<Format>(low) | f8_code<Format>(high) << 8;
#endif
}

/// As to_float, of the lowest byte. A code's bits where an fp32 has its own are the value but for
/// what the exponents differ by, also of subnormal ones.
template <class F8>
__device__ __forceinline__ float float_of_f8(std::uint32_t byte) {
  using Format = typename F8::Format;
  constexpr std::uint32_t kBehind = (Format::kRebias << Format::kShift) + 0x3f800000U;
  const std::uint32_t code = byte & 0x7fU, sign = (byte & 0x80U) << 24;
  if (code > Format::kLargest)
    return float_of_bits(sign | (code < Format::kLeastNan ? 0x7f800000U : 0x7fc00000U));
  return __fmul_rn(float_of_bits(sign | code << Format::kShift), float_of_bits(kBehind));
}

}  // namespace trireme::cuda
