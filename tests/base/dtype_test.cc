#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace trireme {
namespace {

float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(DType, sizes_and_names_agree_with_their_types) {
  EXPECT_EQ(size_of(DType::kF32), sizeof(float));
  EXPECT_EQ(size_of(DType::kBF16), sizeof(BFloat16));
  EXPECT_EQ(size_of(DType::kF64), sizeof(double));
  EXPECT_EQ(size_of(DType::kI32), sizeof(std::int32_t));
  EXPECT_EQ(name_of(DType::kF32), "fp32");
  EXPECT_EQ(name_of(DType::kBF16), "bf16");
  EXPECT_EQ(name_of(DType::kF64), "fp64");
  EXPECT_EQ(name_of(DType::kI32), "int32");
  EXPECT_EQ(DTypeOf<BFloat16>::kValue, DType::kBF16);
}

TEST(BFloat16, every_bf16_survives_the_way_through_fp32) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const BFloat16 value{static_cast<std::uint16_t>(bits)};
    const float wide = to_float(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_float(to_bfloat16(wide))));
    } else {
      ASSERT_EQ(to_bfloat16(wide).bits, bits);
    }
  }
}

TEST(BFloat16, every_tie_goes_to_the_even_neighbour) {
  // The fp32 midway between two neighbours has only the top bit of the lower half set.
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    if ((upper & 0x7f80U) == 0x7f80U) continue;  // infinities and NaN
    const std::uint32_t even = (upper & 1U) == 0 ? upper : upper + 1;
    ASSERT_EQ(to_bfloat16(float_of(upper << 16 | 0x8000U)).bits, even) << upper;
  }
}

TEST(BFloat16, just_beside_a_tie_the_nearer_neighbour_wins) {
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    if ((upper & 0x7f80U) == 0x7f80U) continue;
    ASSERT_EQ(to_bfloat16(float_of(upper << 16 | 0x7fffU)).bits, upper);
    ASSERT_EQ(to_bfloat16(float_of(upper << 16 | 0x8001U)).bits, upper + 1);
  }
}

TEST(BFloat16, values_beyond_the_largest_round_to_infinity) {
  const float largest = to_float(BFloat16{0x7f7f});
  EXPECT_EQ(to_bfloat16(std::nextafter(largest, 0.0F)).bits, 0x7f7f);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(to_bfloat16(-std::numeric_limits<float>::infinity()).bits, 0xff80);
}

TEST(BFloat16, a_nan_stays_a_quiet_nan_of_its_sign) {
  // A payload only in the lower half would be cut to infinity.
  for (const std::uint32_t bits :
       {0x7f800001U, 0xff800001U, 0x7fffffffU, 0x7fc00000U, 0xffffffffU, 0x7f80ffffU}) {
    const std::uint16_t narrow = to_bfloat16(float_of(bits)).bits;
    EXPECT_TRUE(std::isnan(to_float(BFloat16{narrow}))) << bits;
    EXPECT_NE(narrow & 0x40, 0) << bits;
    EXPECT_EQ(narrow >> 15, bits >> 31) << bits;
  }
}

}  // namespace
}  // namespace trireme
