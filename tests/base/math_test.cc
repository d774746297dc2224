#include "base/math.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(Math, division_rounds_up) {
  EXPECT_EQ(ceil_div(0, 4), 0);
  EXPECT_EQ(ceil_div(1, 4), 1);
  EXPECT_EQ(ceil_div(4, 4), 1);
  EXPECT_EQ(ceil_div(5, 4), 2);
  EXPECT_EQ(round_up(307, 128), 384);
  EXPECT_EQ(round_up(384, 128), 384);
}

TEST(Math, exact_division_refuses_a_remainder) {
  EXPECT_EQ(div_exact(12, 4), 3);
  EXPECT_THROW(div_exact(13, 4), InternalError);
  EXPECT_THROW(div_exact(13, 0), InternalError);
}

TEST(Math, narrowing_refuses_what_does_not_fit) {
  EXPECT_EQ(narrow<std::int8_t>(std::int64_t{-128}), -128);
  EXPECT_THROW(narrow<std::int8_t>(std::int64_t{128}), InternalError);
  EXPECT_THROW(narrow<std::uint32_t>(std::int64_t{-1}), InternalError);
}

TEST(Math, a_product_that_overflows_is_told) {
  std::int64_t product = 0;
  EXPECT_TRUE(multiply_checked(std::int64_t{1} << 31, std::int64_t{1} << 31, &product));
  EXPECT_EQ(product, std::int64_t{1} << 62);
  EXPECT_FALSE(multiply_checked(std::int64_t{1} << 32, std::int64_t{1} << 31, &product));
}

TEST(Math, even_slices_cover_everything_once_and_differ_by_at_most_one) {
  for (std::int64_t count = 0; count < 40; ++count) {
    for (std::int64_t pieces = 1; pieces < 10; ++pieces) {
      std::int64_t next = 0;
      for (std::int64_t i = 0; i < pieces; ++i) {
        const Slice piece = even_slice(count, pieces, i);
        ASSERT_EQ(piece.begin, next);
        ASSERT_GE(piece.size, count / pieces);
        ASSERT_LE(piece.size, ceil_div(count, pieces));
        if (i > 0) {
          ASSERT_LE(piece.size, even_slice(count, pieces, i - 1).size) << "the first are larger";
        }
        next += piece.size;
      }
      ASSERT_EQ(next, count);
    }
  }
}

}  // namespace
}  // namespace trireme
