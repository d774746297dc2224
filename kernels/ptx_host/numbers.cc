#include "kernels/ptx_host/numbers.h"

#include <algorithm>

namespace trireme::ptx {
namespace {

/// A number of `fraction` bits behind the point and exponents from `lowest`, as code without a
/// sign: exact steps of a power of two, so that one rule serves every narrow format. `value` is
/// finite and not negative.
std::uint32_t code_of(double value, int fraction, int lowest, Round toward) {
  int exponent = 0;
  if (value == 0) return 0;
  std::frexp(value, &exponent);
  exponent = std::max(exponent - 1, lowest);
  const double steps = std::ldexp(value, fraction - exponent);  // below 2^(fraction+1)
  double whole = std::floor(steps);
  const double rest = steps - whole;
  const bool odd = std::fmod(whole, 2) != 0;
  if (toward == Round::kUp ? rest > 0
                           : toward == Round::kNearest && (rest > 0.5 || (rest == 0.5 && odd)))
    whole += 1;
  // A carry into the next exponent falls out of the sum.
  return std::uint32_t(whole) + (std::uint32_t(exponent - lowest) << fraction);
}

Round magnitude_round(Round round, bool negative) {
  if (round == Round::kDown) return negative ? Round::kUp : Round::kZero;
  if (round == Round::kUp) return negative ? Round::kZero : Round::kUp;
  return round;
}

float decode_narrow(std::uint32_t code, int fraction, int bias) {
  const std::uint32_t exponent = code >> fraction, mantissa = code & ((1u << fraction) - 1);
  if (exponent == 0) return std::ldexp(float(mantissa), 1 - bias - fraction);
  return std::ldexp(float(mantissa + (1u << fraction)), int(exponent) - bias - fraction);
}

/// As IEEE has it: the largest exponent means infinity, or NaN.
float decode_ieee(std::uint32_t code, int fraction, int bias) {
  const std::uint32_t infinite = std::uint32_t(2 * bias + 1) << fraction;
  if (code > infinite) return std::numeric_limits<float>::quiet_NaN();
  if (code == infinite) return std::numeric_limits<float>::infinity();
  return decode_narrow(code, fraction, bias);
}

/// The nearest code; `largest` for all beyond it. NaN is 0x7f, the sign's bit 0x80.
std::uint8_t saturating_code(float value, int fraction, int lowest, std::uint32_t largest) {
  if (std::isnan(value)) return 0x7f;
  const std::uint32_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isinf(value)) return std::uint8_t(sign | largest);
  return std::uint8_t(
      sign | std::min(code_of(std::fabs(value), fraction, lowest, Round::kNearest), largest));
}

}  // namespace

float float_of_half(std::uint16_t bits) {
  return (bits & 0x8000 ? -1.0F : 1.0F) * decode_ieee(bits & 0x7fff, 10, 15);
}

float float_of_e4m3(std::uint8_t bits) {
  const float sign = bits & 0x80 ? -1.0F : 1.0F;
  if ((bits & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  return sign * decode_narrow(bits & 0x7f, 3, 7);
}

float float_of_e5m2(std::uint8_t bits) {
  return (bits & 0x80 ? -1.0F : 1.0F) * decode_ieee(bits & 0x7f, 2, 15);
}

// The upper half of the float's bits, and a carry where the lower half says so.
std::uint16_t bf16_of(float value, Round round) {
  if (std::isnan(value)) return 0x7fff;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const Round toward = magnitude_round(round, std::signbit(value));
  const std::uint32_t rest = bits & 0xffff, code = bits >> 16;
  if (std::isinf(value)) return std::uint16_t(code);
  const bool up = toward == Round::kNearest ? rest > 0x8000 || (rest == 0x8000 && (code & 1))
                                            : toward == Round::kUp && rest != 0;
  return std::uint16_t(code + up);
}

std::uint16_t half_of(double value, Round round) {
  if (std::isnan(value)) return 0x7fff;
  const auto sign = std::uint16_t(std::signbit(value) ? 0x8000 : 0);
  if (std::isinf(value)) return std::uint16_t(sign | 0x7c00);
  const Round toward = magnitude_round(round, sign != 0);
  const std::uint32_t code = code_of(std::fabs(value), 10, -14, toward);
  const std::uint32_t beyond = toward == Round::kZero ? 0x7bff : 0x7c00;
  return std::uint16_t(sign | std::min(code, beyond));
}

std::uint8_t e4m3_of(float value) { return saturating_code(value, 3, -6, 0x7e); }
std::uint8_t e5m2_of(float value) { return saturating_code(value, 2, -14, 0x7b); }

float float_of(double value, Round round) {
  const auto nearest = float(value);
  if (round == Round::kNearest || std::isnan(value) || double(nearest) == value) return nearest;
  const Round toward = magnitude_round(round, std::signbit(value));
  const bool larger = std::fabs(double(nearest)) > std::fabs(value);
  const float infinity = std::copysign(std::numeric_limits<float>::infinity(), nearest);
  if (toward == Round::kZero) return larger ? std::nextafter(nearest, 0.0F) : nearest;
  return larger ? nearest : std::nextafter(nearest, infinity);
}

}  // namespace trireme::ptx
