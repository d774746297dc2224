#pragma once
// Squares are rounded to a grid, so that sums of them are exact in f64 and have no order:
// (x^2 + M) - M with M = 1.5 x 2^52 grids.

#include <cstdint>

#include "kernels/common/host_device.h"

namespace trireme {

/// 1.5 x 2^(52 + exponent).
TRIREME_HOST_DEVICE __attribute__((always_inline)) double rounder_of(int exponent) {
  const std::uint64_t bits =
      static_cast<std::uint64_t>(1023 + 52 + exponent) << 52 | std::uint64_t{1} << 51;
  return __builtin_bit_cast(double, bits);
}

/// Of a line of `terms` elements whose largest magnitude has these bits: its sum is below 2^52
/// grids. Not a number where the largest is none or infinite.
TRIREME_HOST_DEVICE __attribute__((always_inline)) double line_rounder(std::int32_t largest,
                                                                       std::int64_t terms) {
  const int exponent = largest >> 23 & 0xff;
  if (exponent == 0xff) return __builtin_bit_cast(double, std::uint64_t{0x7ff8} << 48);
  int bits = 0;  // of the count of terms
  while (std::int64_t{1} << bits < terms) ++bits;
  const int above = 2 * ((exponent == 0 ? 1 : exponent) - 127 + 1);  // squares are below 2^above
  return rounder_of(above - (51 - bits));
}

inline constexpr int kWeightGrid = -40, kStepGrid = -24;
/// A sum of squares on such a grid that is below this is exact.
TRIREME_HOST_DEVICE __attribute__((always_inline)) double exact_below(int grid) {
  return __builtin_bit_cast(double, static_cast<std::uint64_t>(1023 + 53 + grid) << 52);
}

}  // namespace trireme
