#include "kernels/simt_host/wgmma_sums.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/simt_host/state.h"

#if defined(__GNUC__) && !SIMT_ASAN
#define SIMT_FOR_VECTORS __attribute__((target_clones("default", "arch=haswell")))
#else
#define SIMT_FOR_VECTORS
#endif

namespace trireme::simt {
namespace {

constexpr int kRows = 64, kColumnsMax = 256, kCodes = 32;
constexpr int kFraction = 13;      // bits that an accumulator of fp8 products keeps
constexpr int kLowest = -100;      // below every product of codes, and still an exponent of fp32
constexpr int kOfZero = -1 << 20;  // of a factor: no product with it is the largest

std::array<float, 256> table_of(int fraction_bits, int bias, bool infinities) {
  std::array<float, 256> table{};
  const int steps = 1 << fraction_bits, top = (1 << (7 - fraction_bits)) - 1;
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> fraction_bits & top, fraction = code & (steps - 1);
    float value = exponent == 0
                      ? std::ldexp(float(fraction), 1 - bias - fraction_bits)
                      : std::ldexp(float(steps + fraction), exponent - bias - fraction_bits);
    if (infinities && exponent == top)
      value = fraction == 0 ? std::numeric_limits<float>::infinity()
                            : std::numeric_limits<float>::quiet_NaN();
    if (!infinities && (code & 0x7f) == 0x7f) value = std::numeric_limits<float>::quiet_NaN();
    table[size_t(code)] = code >= 128 ? -value : value;
  }
  return table;
}

SIMT_FOR_VECTORS void add_upwards(float* __restrict d, const float* __restrict a,
                                  const float* __restrict b, int n, int depth) {
  for (int m = 0; m < kRows; ++m)
    for (int k = 0; k < depth; ++k) {
      float x = a[m * depth + k];
      for (int j = 0; j < n; ++j) d[m * n + j] += x * b[k * n + j];
    }
}

/// Of a value of the format; subnormal ones have that of the smallest normal one.
int exponent_of(float value, int lowest) {
  if (value == 0) return kOfZero;
  return std::max(int(std::bit_cast<uint32_t>(value) >> 23 & 0xff) - 127, lowest);
}

int lowest_of(WgmmaFormat format) { return format == WgmmaFormat::kE4m3 ? -6 : -14; }

/// One row: every product and the accumulator lose what lies below kFraction bits of the largest
/// exponent among them; so does the sum, which is exact until then.
SIMT_FOR_VECTORS void add_aligned(float* __restrict d, const float* __restrict a,
                                  const int* __restrict a_exponents, const float* __restrict b,
                                  const int* __restrict b_exponents, int n) {
  int largest[kColumnsMax];
  float sums[kColumnsMax], scales[kColumnsMax];
  for (int j = 0; j < n; ++j) {
    const int of_sum = int(std::bit_cast<uint32_t>(d[j]) >> 23 & 0xff) - 127;
    largest[j] = std::max(of_sum, kLowest);
  }
  for (int k = 0; k < kCodes; ++k)
    for (int j = 0; j < n; ++j)
      largest[j] = std::max(largest[j], a_exponents[k] + b_exponents[k * n + j]);
  for (int j = 0; j < n; ++j) {
    scales[j] = std::bit_cast<float>(uint32_t(127 + kFraction - largest[j]) << 23);
    sums[j] = std::trunc(d[j] * scales[j]);
  }
  for (int k = 0; k < kCodes; ++k)
    for (int j = 0; j < n; ++j) sums[j] += std::trunc(a[k] * b[k * n + j] * scales[j]);
  for (int j = 0; j < n; ++j) {
    const float whole = sums[j] / scales[j];
    d[j] = std::bit_cast<float>(std::bit_cast<uint32_t>(whole) & ~0U << (23 - kFraction));
  }
}

}  // namespace

float float_of_bf16(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

float float_of_code(WgmmaFormat format, unsigned char code) {
  static const std::array<float, 256> e4m3 = table_of(3, 7, false), e5m2 = table_of(2, 15, true);
  return (format == WgmmaFormat::kE4m3 ? e4m3 : e5m2)[code];
}

void multiply(const WgmmaShape& shape, float* d, const float* a, const float* b) {
  const int n = shape.n;
  if (shape.a == WgmmaFormat::kBf16 || !options().tensor_core_sums)
    return add_upwards(d, a, b, n, depth_of(shape));
  static thread_local std::array<int, kCodes * kColumnsMax> b_exponents;
  for (int i = 0; i < kCodes * n; ++i)
    b_exponents[size_t(i)] = exponent_of(b[i], lowest_of(shape.b));
  for (int m = 0; m < kRows; ++m) {
    int a_exponents[kCodes];
    for (int k = 0; k < kCodes; ++k)
      a_exponents[k] = exponent_of(a[m * kCodes + k], lowest_of(shape.a));
    add_aligned(d + m * n, a + m * kCodes, a_exponents, b, b_exponents.data(), n);
  }
}

}  // namespace trireme::simt
