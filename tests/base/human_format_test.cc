#include "base/human_format.h"

#include <gtest/gtest.h>

#include <limits>

namespace trireme {
namespace {

TEST(HumanFormat, counts_have_three_digits_and_a_letter) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1.00k");
  EXPECT_EQ(format_count(12345), "12.3k");
  EXPECT_EQ(format_count(1234567), "1.23M");
  EXPECT_EQ(format_count(-4560000000.0), "-4.56B");
  EXPECT_EQ(format_count(7.25e12), "7.25T");
  EXPECT_EQ(format_count(7.25e18), "7250000T");
  EXPECT_EQ(format_count(0.5), "0.50");
}

TEST(HumanFormat, a_count_that_rounds_up_takes_the_next_letter) {
  EXPECT_EQ(format_count(999'600), "1.00M");
  EXPECT_EQ(format_count(999'400), "999k");
  EXPECT_EQ(format_count(9'996), "10.0k");
}

TEST(HumanFormat, a_count_that_is_no_number_is_a_question_mark) {
  EXPECT_EQ(format_count(std::numeric_limits<double>::quiet_NaN()), "?");
  EXPECT_EQ(format_count(std::numeric_limits<double>::infinity()), "?");
}

TEST(HumanFormat, bytes_use_binary_units) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(13207024435), "12.3 GiB");
  EXPECT_EQ(format_bytes((std::int64_t{1} << 20) - 1), "1.00 MiB");
}

TEST(HumanFormat, durations_name_two_neighbouring_units) {
  EXPECT_EQ(format_duration(0), "0s");
  EXPECT_EQ(format_duration(0.25), "0.25s");
  EXPECT_EQ(format_duration(45), "45s");
  EXPECT_EQ(format_duration(59.7), "1m00s");
  EXPECT_EQ(format_duration(187), "3m07s");
  EXPECT_EQ(format_duration(3725), "1h02m");
  EXPECT_EQ(format_duration(183600), "2d03h");
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "?");
}

TEST(HumanFormat, integers_are_grouped_by_three_digits) {
  EXPECT_EQ(format_integer(0), "0");
  EXPECT_EQ(format_integer(-999), "-999");
  EXPECT_EQ(format_integer(-1000), "-1,000");
  EXPECT_EQ(format_integer(1234567), "1,234,567");
  EXPECT_EQ(format_integer(std::numeric_limits<std::int64_t>::min()), "-9,223,372,036,854,775,808");
}

}  // namespace
}  // namespace trireme
