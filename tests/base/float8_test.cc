#include "base/float8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace trireme {
namespace {

/// The value of a code by the format's definition: sign, `exponent_bits` of an exponent, fraction.
double value_of(std::uint32_t code, int fraction_bits, int bias) {
  const int fraction = static_cast<int>(code & ((1U << fraction_bits) - 1));
  const int exponent = static_cast<int>((code & 0x7fU) >> fraction_bits);
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                    : std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
  return (code & 0x80U) != 0 ? -magnitude : magnitude;
}

template <class F8>
class Float8 : public testing::Test {};
using Formats = testing::Types<F8E4M3, F8E5M2>;
TYPED_TEST_SUITE(Float8, Formats);

template <class F8>
double largest() {
  return largest_of_f8(DTypeOf<F8>::kValue);
}

TEST(Float8Limits, are_those_of_the_formats) {
  EXPECT_EQ(to_float(F8E4M3{0x7e}), 448);
  EXPECT_EQ(to_float(F8E4M3{0x08}), 0x1p-6F);
  EXPECT_EQ(to_float(F8E4M3{0x01}), 0x1p-9F);
  EXPECT_TRUE(std::isnan(to_float(F8E4M3{0x7f})));
  EXPECT_TRUE(std::isnan(to_float(F8E4M3{0xff})));
  EXPECT_EQ(to_float(F8E5M2{0x7b}), 57344);
  EXPECT_EQ(to_float(F8E5M2{0x04}), 0x1p-14F);
  EXPECT_EQ(to_float(F8E5M2{0x01}), 0x1p-16F);
  EXPECT_EQ(to_float(F8E5M2{0x7c}), std::numeric_limits<float>::infinity());
  EXPECT_EQ(to_float(F8E5M2{0xfc}), -std::numeric_limits<float>::infinity());
  for (const int code : {0x7d, 0x7e, 0x7f})
    EXPECT_TRUE(std::isnan(to_float(F8E5M2{static_cast<std::uint8_t>(code)}))) << code;
}

TYPED_TEST(Float8, every_code_has_its_value_and_survives_the_way_through_fp32) {
  constexpr bool kE4M3 = std::is_same_v<TypeParam, F8E4M3>;
  for (std::uint32_t code = 0; code < 256; ++code) {
    const float value = to_float(TypeParam{static_cast<std::uint8_t>(code)});
    if (!std::isfinite(value)) continue;
    ASSERT_EQ(value, value_of(code, kE4M3 ? 3 : 2, kE4M3 ? 7 : 15)) << code;
    ASSERT_EQ(to_f8<TypeParam>(value).bits, code);
  }
}

TYPED_TEST(Float8, between_two_neighbours_the_nearer_wins_and_of_a_tie_the_even_one) {
  for (std::uint32_t code = 0;
       to_float(TypeParam{static_cast<std::uint8_t>(code)}) < largest<TypeParam>(); ++code) {
    const float low = to_float(TypeParam{static_cast<std::uint8_t>(code)}),
                high = to_float(TypeParam{static_cast<std::uint8_t>(code + 1)});
    const float middle = low + (high - low) / 2;
    for (const float sign : {1.0F, -1.0F}) {
      const std::uint32_t bit = sign < 0 ? 0x80 : 0;
      ASSERT_EQ(to_f8<TypeParam>(sign * middle).bits, bit | (code + (code & 1U)));
      ASSERT_EQ(to_f8<TypeParam>(sign * std::nextafter(middle, 0.0F)).bits, bit | code);
      ASSERT_EQ(to_f8<TypeParam>(sign * std::nextafter(middle, high)).bits, bit | (code + 1));
    }
  }
}

TYPED_TEST(Float8, what_is_beyond_the_largest_becomes_that_and_a_nan_stays_one) {
  const auto code = static_cast<std::uint32_t>(TypeParam::Format::kLargest);
  const auto most = static_cast<float>(largest<TypeParam>());
  for (const float beyond :
       {std::nextafter(most, 1e9F), 1.25F * most, 2 * most, std::numeric_limits<float>::max(),
        std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(to_f8<TypeParam>(beyond).bits, code);
    EXPECT_EQ(to_f8<TypeParam>(-beyond).bits, code | 0x80U);
  }
  for (const std::uint32_t nan : {0x7f800001U, 0x7fffffffU, 0xff800001U, 0xffc00000U})
    EXPECT_EQ(to_f8<TypeParam>(std::bit_cast<float>(nan)).bits, 0x7f);
  EXPECT_EQ(to_f8<TypeParam>(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(to_f8<TypeParam>(-std::numeric_limits<float>::denorm_min()).bits, 0x80);
  EXPECT_EQ(to_f8<TypeParam>(-0.0F).bits, 0x80);
}

}  // namespace
}  // namespace trireme
