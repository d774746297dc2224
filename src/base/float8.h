#pragma once
// The fp8 types of DType, one value at a time. Vectors (kernels/common/simd.h) and GPUs
// (kernels/common/float8.cuh) take the same integer steps.

#include "base/dtype.h"

namespace trireme {

/// A sign, an exponent and a fraction of an fp32's are rounded away but for so many bits.
///   kShift      of what an fp32's fraction has more
///   kRebias     between the exponents, where a code has its own
///   kMinNormal  bits of the least normal number
///   kMagic      what |x| is added to where it is less: its last bit is that of a subnormal code
template <int FractionBits, int Bias, std::uint32_t Largest, std::uint32_t LeastNan>
struct F8Format {
  static constexpr int kFractionBits = FractionBits;
  static constexpr int kShift = 23 - FractionBits;
  static constexpr std::uint32_t kRebias = std::uint32_t{127 - Bias} << FractionBits;
  static constexpr std::uint32_t kMinNormal = std::uint32_t{128 - Bias} << 23;
  static constexpr std::uint32_t kMagic = std::uint32_t{127 + 24 - Bias - FractionBits} << 23;
  static constexpr std::uint32_t kLargest = Largest;    ///< code of the largest finite value
  static constexpr std::uint32_t kLeastNan = LeastNan;  ///< and all above; those between: infinity
  static constexpr std::uint32_t kNan = 0x7f;           ///< what a NaN becomes, whatever its sign
};
struct F8E4M3 {
  using Format = F8Format<3, 7, 0x7e, 0x7f>;
  std::uint8_t bits = 0;
};
struct F8E5M2 {
  using Format = F8Format<2, 15, 0x7b, 0x7d>;
  std::uint8_t bits = 0;
};
template <>
struct DTypeOf<F8E4M3> {
  static constexpr DType kValue = DType::kF8E4M3;
};
template <>
struct DTypeOf<F8E5M2> {
  static constexpr DType kValue = DType::kF8E5M2;
};

/// The largest finite value of a format.
constexpr float largest_of_f8(DType format) { return format == DType::kF8E5M2 ? 57344.0F : 448.0F; }

/// Round to nearest, ties to even; what is beyond the largest value becomes that, infinities too.
template <class F8>
F8 to_f8(float value) {
  using Format = typename F8::Format;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value), magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return {static_cast<std::uint8_t>(Format::kNan)};
  std::uint32_t code = 0;
  if (magnitude < Format::kMinNormal) {
    const float sum = std::bit_cast<float>(magnitude) + std::bit_cast<float>(Format::kMagic);
    code = std::bit_cast<std::uint32_t>(sum) - Format::kMagic;
  } else {
    const std::uint32_t odd = magnitude >> Format::kShift & 1U;
    const std::uint32_t rounded =
        (magnitude + (1U << (Format::kShift - 1)) - 1U + odd) >> Format::kShift;
    code = rounded - Format::kRebias;
    if (code > Format::kLargest) code = Format::kLargest;
  }
  return {static_cast<std::uint8_t>(code | (bits >> 24 & 0x80U))};
}

template <class F8, class Format = typename F8::Format>
float to_float(F8 value) {
  const std::uint32_t code = value.bits & 0x7fU, sign = (value.bits & 0x80U) << 24;
  std::uint32_t magnitude = (code + Format::kRebias) << Format::kShift;
  if (code >= Format::kLeastNan) {
    magnitude = 0x7fc00000U;
  } else if (code > Format::kLargest) {
    magnitude = 0x7f800000U;
  } else if (code < 1U << Format::kFractionBits) {
    constexpr std::uint32_t kStep =
        Format::kMinNormal - (std::uint32_t{Format::kFractionBits} << 23);
    magnitude =
        std::bit_cast<std::uint32_t>(static_cast<float>(code) * std::bit_cast<float>(kStep));
  }
  return std::bit_cast<float>(magnitude | sign);
}

}  // namespace trireme
