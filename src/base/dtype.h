#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace trireme {

/// The fp8 types (OCP's OFP8, Micikevicius et al. 2022): kF8E4M3 has no infinity, one NaN (0x7f)
/// and 448 for its largest value; kF8E5M2 has IEEE's infinities and NaNs, and 57,344. kU8 is a
/// byte: two codes of NF4 (tensor/nf4_view.h), or one of a moment (kernels/update/moment_codes.h).
enum class DType : std::uint8_t { kF32, kBF16, kF64, kI32, kF8E4M3, kF8E5M2, kU8 };

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 2;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF64:
      return 8;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kU8:
      return 1;
  }
  return 0;
}

constexpr bool is_fp8(DType dtype) { return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2; }

/// "fp32", "bf16", "fp64", "int32", "e4m3", "e5m2", "uint8".
std::string_view name_of(DType dtype);

/// The upper half of an fp32.
struct BFloat16 {
  std::uint16_t bits = 0;
};

inline float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}
inline float to_float(float value) { return value; }

/// Round to nearest, ties to even; a NaN stays a (quiet) NaN.
inline BFloat16 to_bfloat16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return {static_cast<std::uint16_t>((bits >> 16) | 0x40U)};
  }
  return {static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType kValue = DType::kF32;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType kValue = DType::kBF16;
};
template <>
struct DTypeOf<double> {
  static constexpr DType kValue = DType::kF64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType kValue = DType::kI32;
};

}  // namespace trireme
