#include "base/shape.h"

#include <gtest/gtest.h>

#include <type_traits>

#include "base/random.h"

namespace trireme {
namespace {

static_assert(std::is_trivially_copyable_v<Shape>);

TEST(Shape, sizes_count_and_text) {
  const Shape shape{2, 8, 16};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape[1], 8);
  EXPECT_EQ(shape.count(), 256);
  EXPECT_EQ(shape.text(), "[2, 8, 16]");
  EXPECT_EQ(Shape{}.count(), 1);
  EXPECT_EQ(Shape{}.text(), "[]");
  EXPECT_EQ((Shape{3, 0, 5}).count(), 0);
}

TEST(Shape, shapes_are_equal_only_with_equal_rank) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_NE((Shape{2, 0}), (Shape{2}));
}

TEST(Shape, more_dims_than_fit_are_a_defect) {
  EXPECT_NO_THROW((Shape{1, 2, 3, 4, 5}));
  EXPECT_THROW((Shape{1, 2, 3, 4, 5, 6}), InternalError);
}

TEST(Box, the_common_part_of_two_boxes) {
  const Box a{{0, 4}, {4, 4}}, b{{2, 0}, {10, 6}};
  EXPECT_EQ(intersect(a, b), (Box{{2, 4}, {2, 2}}));
  EXPECT_EQ(intersect(b, a), (Box{{2, 4}, {2, 2}}));
  EXPECT_EQ(intersect(a, a), a);
}

TEST(Box, boxes_that_only_touch_share_nothing) {
  EXPECT_EQ(intersect({{0}, {4}}, {{4}, {4}}).shape.count(), 0);
  EXPECT_EQ(intersect({{0, 0}, {4, 4}}, {{0, 9}, {4, 4}}).shape.count(), 0);
}

TEST(Box, a_scalar_meets_itself) { EXPECT_EQ(intersect(Box{}, Box{}).shape.count(), 1); }

TEST(Box, boxes_of_different_rank_are_a_defect) {
  EXPECT_THROW(intersect({{0}, {1}}, {{0, 0}, {1, 1}}), InternalError);
}

TEST(Box, an_intersection_holds_exactly_the_elements_of_both) {
  std::uint64_t counter = 0;
  const auto draw = [&](std::uint64_t bound) {
    return static_cast<std::int64_t>(uniform_below(9, bound, &counter));
  };
  for (int trial = 0; trial < 300; ++trial) {
    const Box a{{draw(5), draw(5)}, {draw(5), draw(5)}}, b{{draw(5), draw(5)}, {draw(5), draw(5)}};
    const auto holds = [](const Box& box, std::int64_t i, std::int64_t j) {
      return i >= box.offset[0] && i < box.offset[0] + box.shape[0] && j >= box.offset[1] &&
             j < box.offset[1] + box.shape[1];
    };
    const Box common = intersect(a, b);
    for (std::int64_t i = 0; i < 10; ++i) {
      for (std::int64_t j = 0; j < 10; ++j) {
        ASSERT_EQ(holds(common, i, j), holds(a, i, j) && holds(b, i, j)) << trial;
      }
    }
  }
}

}  // namespace
}  // namespace trireme
