#pragma once
// The formats of numbers, by their bits.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace trireme::ptx {

enum class Round : std::uint8_t { kNearest, kZero, kDown, kUp };

inline float float_of_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t(bits) << 16);
}
float float_of_half(std::uint16_t bits);
/// 4 exponent bits, 3 of fraction, no infinity; 0x7f is NaN.
float float_of_e4m3(std::uint8_t bits);
float float_of_e5m2(std::uint8_t bits);

std::uint16_t bf16_of(float value, Round round);
std::uint16_t half_of(double value, Round round);
/// Values beyond the largest become it (`.satfinite`); NaN stays NaN.
std::uint8_t e4m3_of(float value);
std::uint8_t e5m2_of(float value);
/// A double in a direction to a float.
float float_of(double value, Round round);

/// A subnormal number becomes zero, its sign stays.
inline float flushed(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return (bits & 0x7f800000u) == 0 ? std::bit_cast<float>(bits & 0x80000000u) : x;
}

}  // namespace trireme::ptx
