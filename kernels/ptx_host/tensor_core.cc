#include "kernels/ptx_host/tensor_core.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/ptx_host/numbers.h"
#include "kernels/ptx_host/options.h"

namespace trireme::ptx {
namespace {

int lowest_exponent(Type t) {
  switch (t.kind) {
    case Kind::kE4m3:
      return -6;
    case Kind::kE5m2:
      return -14;
    case Kind::kFloat:
      return t.bits == 16 ? -14 : -126;
    default:
      return -126;
  }
}

int exponent_of(float x, int lowest) { return x == 0 ? lowest : std::max(std::ilogb(x), lowest); }

// Toward zero to 1 + 8 + bits; subnormal floats keep their spacing.
float cut(double value, int bits) {
  if (value == 0 || !std::isfinite(value)) return float(value) + 0.0F;
  const int exponent = std::max(std::ilogb(value), -126);
  const double steps = std::trunc(std::ldexp(value, bits - exponent));
  return float(std::ldexp(steps, exponent - bits));
}

}  // namespace

CoreNumbers core_numbers(Type a, Type b, Type d, bool warpgroup) {
  CoreNumbers numbers;
  numbers.block = 256 / a.bits;
  numbers.subnormal_a = lowest_exponent(a);
  numbers.subnormal_b = lowest_exponent(b);
  numbers.half_sum = d.bits == 16;
  if (warpgroup && a.bits == 8) {
    numbers.fraction = 13;
    numbers.narrow_sum = true;
  }
  return numbers;
}

float core_sum(const float* a, const float* b, int k, float c, const CoreNumbers& numbers) {
  const int lowest_c = numbers.half_sum ? -14 : -126, zero_exponent = numbers.half_sum ? -21 : -133;
  for (int begin = 0; begin < k; begin += numbers.block) {
    const int end = std::min(k, begin + numbers.block);
    int largest = c == 0 ? zero_exponent : exponent_of(c, lowest_c);
    double plain = double(c);
    for (int i = begin; i < end; ++i) {
      plain += double(a[i]) * double(b[i]);
      if (a[i] != 0 && b[i] != 0)
        largest = std::max(largest, exponent_of(a[i], numbers.subnormal_a) +
                                        exponent_of(b[i], numbers.subnormal_b));
    }
    if (!std::isfinite(plain)) {
      c = std::isnan(plain) ? std::bit_cast<float>(0x7fffffffu) : float(plain);
      continue;
    }
    const int scale = numbers.fraction - largest;
    double sum = std::trunc(std::ldexp(double(c), scale));
    for (int i = begin; i < end; ++i)
      sum += std::trunc(std::ldexp(double(a[i]) * double(b[i]), scale));
    const double value = std::ldexp(sum, -scale);
    c = numbers.half_sum ? float_of_half(half_of(value, Round::kNearest))
                         : cut(value, numbers.narrow_sum ? 13 : 23);
  }
  return c;
}

void multiply(const Tile& tile, const CoreNumbers& numbers) {
  const auto [a, b, d, rows, n, k] = tile;
  if (!options().tensor_core_sums) {
    for (int m = 0; m < rows; ++m)
      for (int i = 0; i < k; ++i) {
        const float x = a[m * k + i];
        for (int j = 0; j < n; ++j) d[m * n + j] += x * b[i * n + j];
      }
    return;
  }
  std::vector<float> column(std::size_t(k) * std::size_t(n));
  for (int i = 0; i < k; ++i)
    for (int j = 0; j < n; ++j) column[std::size_t(j * k + i)] = b[i * n + j];
  for (int m = 0; m < rows; ++m)
    for (int j = 0; j < n; ++j)
      d[m * n + j] = core_sum(a + m * k, column.data() + j * k, k, d[m * n + j], numbers);
}

float number_of(std::uint32_t bits, Type type) {
  switch (type.kind) {
    case Kind::kBf16:
      return float_of_bf16(std::uint16_t(bits));
    case Kind::kE4m3:
      return float_of_e4m3(std::uint8_t(bits));
    case Kind::kE5m2:
      return float_of_e5m2(std::uint8_t(bits));
    case Kind::kTf32:
      return std::bit_cast<float>(bits & 0xffffe000u);
    default:
      return type.bits == 16 ? float_of_half(std::uint16_t(bits)) : std::bit_cast<float>(bits);
  }
}

}  // namespace trireme::ptx
