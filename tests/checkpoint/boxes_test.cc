#include "checkpoint/boxes.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>

#include "base/random.h"

namespace trireme {
namespace {

/// Positions of a box's elements in the whole tensor, in the order of the box's buffer.
std::vector<std::vector<std::int64_t>> positions(const Box& box) {
  std::vector<std::vector<std::int64_t>> all;
  for (const Box& element : cut_box(box, 1)) {
    const auto sizes = element.offset.sizes();
    all.emplace_back(sizes.begin(), sizes.end());
  }
  return all;
}

TEST(Boxes, pieces_are_bounded_contiguous_and_in_order) {
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{17}, Shape{0, 4}, Shape{5, 7},
                             Shape{1, 1, 30}, Shape{3, 1, 4, 5}}) {
    Box box = whole(shape);
    for (int dim = 0; dim < shape.rank(); ++dim) box.offset.set(dim, 10 * (dim + 1));
    for (const std::int64_t count_max : {1, 2, 6, 20, 1000}) {
      std::int64_t next = 0;
      for (const Box& piece : cut_box(box, count_max)) {
        EXPECT_LE(piece.shape.count(), count_max);
        EXPECT_EQ(contiguous_offset(box, piece), next)
            << shape.text() << ' ' << piece.offset.text();
        next += piece.shape.count();
      }
      EXPECT_EQ(next, shape.count()) << shape.text();
    }
  }
  EXPECT_EQ(positions({Shape{1, 2}, Shape{2, 2}}),
            (std::vector<std::vector<std::int64_t>>{{1, 2}, {1, 3}, {2, 2}, {2, 3}}));
}

TEST(Boxes, columns_are_not_one_run) {
  EXPECT_EQ(contiguous_offset(whole(Shape{4, 6}), {Shape{1, 2}, Shape{2, 3}}), std::nullopt);
  EXPECT_EQ(contiguous_offset(whole(Shape{4, 6}), {Shape{1, 2}, Shape{1, 3}}), 8);
}

TEST(Boxes, replicas_write_every_box_exactly_once) {
  for (const int replicas : {1, 2, 3, 7}) {
    for (const Shape& shape :
         {Shape{}, Shape{5}, Shape{2, 300000}, Shape{1, 400000}, Shape{1000, 1000}}) {
      for (const char* name : {"a", "b", "c", "d"}) {
        std::int64_t written = 0;
        for (int replica = 0; replica < replicas; ++replica) {
          const Box share = share_of_replica({name, whole(shape), 4, replica, replicas});
          if (share.shape.count() == 0) continue;
          EXPECT_TRUE(lies_inside(share, shape));
          EXPECT_TRUE(contiguous_offset(whole(shape), share).has_value());
          written += share.shape.count();
        }
        EXPECT_EQ(written, shape.count()) << shape.text() << " on " << replicas;
      }
    }
  }
}

TEST(Boxes, small_tensors_are_spread_over_the_replicas) {
  std::map<int, int> tensors_of;
  for (int i = 0; i < 200; ++i) {
    const std::string name = "layers." + std::to_string(i) + ".norm";
    for (int replica = 0; replica < 4; ++replica) {
      tensors_of[replica] +=
          share_of_replica({name, whole(Shape{64}), 4, replica, 4}).shape.count() > 0;
    }
  }
  for (const auto& [replica, count] : tensors_of) EXPECT_GT(count, 25) << replica;
}

TEST(Boxes, a_copy_moves_each_element_of_the_common_part_and_no_other) {
  const Shape shape{6, 5, 4};
  for (std::uint64_t trial = 0; trial < 200; ++trial) {
    std::uint64_t counter = 0;
    const auto random_box = [&] {
      Box box = whole(shape);
      for (int dim = 0; dim < shape.rank(); ++dim) {
        const auto size = static_cast<std::uint64_t>(shape[dim]);
        const auto begin = static_cast<std::int64_t>(uniform_below(trial, size, &counter));
        box.offset.set(dim, begin);
        box.shape.set(dim,
                      1 + static_cast<std::int64_t>(uniform_below(
                              trial, static_cast<std::uint64_t>(shape[dim] - begin), &counter)));
      }
      return box;
    };
    const Box from = random_box(), to = random_box(), common = intersect(from, to);
    std::map<std::vector<std::int64_t>, int> number;
    std::vector<int> source, target(static_cast<std::size_t>(to.shape.count()), -1);
    for (const auto& position : positions(from)) {
      source.push_back(static_cast<int>(source.size()));
      number[position] = source.back();
    }
    copy_box({reinterpret_cast<const std::byte*>(source.data()), from},
             {reinterpret_cast<std::byte*>(target.data()), to}, common, sizeof(int));
    std::size_t at = 0;
    for (const auto& position : positions(to)) {
      const auto found = number.find(position);
      EXPECT_EQ(target[at++], found == number.end() ? -1 : found->second) << "trial " << trial;
    }
  }
}

TEST(Boxes, nothing_lies_inside_by_overflow) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(lies_inside({Shape{3}, Shape{2}}, Shape{5}));
  EXPECT_TRUE(lies_inside({Shape{5}, Shape{0}}, Shape{5}));
  EXPECT_FALSE(lies_inside({Shape{4}, Shape{2}}, Shape{5}));
  EXPECT_FALSE(lies_inside({Shape{most}, Shape{most}}, Shape{5}));
  EXPECT_FALSE(lies_inside({Shape{-1}, Shape{2}}, Shape{5}));
  EXPECT_FALSE(lies_inside({Shape{1}, Shape{-1}}, Shape{5}));
  EXPECT_FALSE(lies_inside({Shape{0, 0}, Shape{1, 1}}, Shape{5}));
}

}  // namespace
}  // namespace trireme
