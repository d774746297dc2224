#pragma once

#include <cstdint>
#include <limits>
#include <utility>

#include "base/error.h"

namespace trireme {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t multiple) {
  return ceil_div(a, multiple) * multiple;
}

/// a / b where b divides a; anything else is a defect of the caller.
inline std::int64_t div_exact(std::int64_t a, std::int64_t b) {
  expect(b != 0 && a % b == 0, "{} does not divide {}", b, a);
  return a / b;
}

/// The same value in a narrower integer type; a value that does not fit is a defect of the caller.
template <class To, class From>
To narrow(From value) {
  expect(std::in_range<To>(value), "{} does not fit its type", value);
  return static_cast<To>(value);
}

/// out = a * b; false where the product of two non-negative numbers does not fit 64 bits.
[[nodiscard]] inline bool multiply_checked(std::int64_t a, std::int64_t b, std::int64_t* out) {
  return !__builtin_mul_overflow(a, b, out);
}

/// [begin, begin + size).
struct Slice {
  std::int64_t begin, size;
};
/// Slice `index` of `count` items in `slices` whose sizes differ by at most one, the larger first.
constexpr Slice even_slice(std::int64_t count, std::int64_t slices, std::int64_t index) {
  const std::int64_t base = count / slices, extra = count % slices;
  const std::int64_t begin = index * base + (index < extra ? index : extra);
  return {begin, base + (index < extra ? 1 : 0)};
}

}  // namespace trireme
