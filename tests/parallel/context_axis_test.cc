#include "parallel/context_axis.h"

#include <gtest/gtest.h>

#include "device/context.h"
#include "tensor/buffer.h"

namespace trireme {
namespace {

TEST(ContextAxis, ranges_partition_the_sequence) {
  for (int extent = 1; extent <= 8; ++extent) {
    for (const std::int64_t piece : {1, 2, 5}) {
      const std::int64_t tokens = 2 * extent * piece;
      std::vector<int> seen(static_cast<std::size_t>(tokens));
      for (int rank = 0; rank < extent; ++rank) {
        const auto ranges = context_ranges(tokens, {extent, rank});
        ASSERT_EQ(ranges.size(), extent == 1 ? 1U : 2U);
        std::int64_t count = 0, end = 0;
        for (const PositionRange& range : ranges) {
          EXPECT_GE(range.first, end);  // ascending
          end = range.first + range.count;
          count += range.count;
          for (std::int64_t i = range.first; i < end; ++i) ++seen.at(static_cast<std::size_t>(i));
        }
        EXPECT_EQ(count, tokens / extent);
      }
      EXPECT_EQ(seen, std::vector<int>(seen.size(), 1)) << extent << " ranks, " << tokens;
    }
  }
}

/// Token i looks at i + 1 keys.
TEST(ContextAxis, causal_attention_is_the_same_work_on_every_place) {
  for (int extent = 1; extent <= 8; ++extent) {
    const std::int64_t tokens = 2 * extent * 3;
    for (int rank = 0; rank < extent; ++rank) {
      std::int64_t keys = 0;
      for (const PositionRange& range : context_ranges(tokens, {extent, rank})) {
        for (std::int64_t i = 0; i < range.count; ++i) keys += range.first + i + 1;
      }
      EXPECT_EQ(keys * extent, tokens * (tokens + 1) / 2) << extent << " ranks, rank " << rank;
    }
  }
}

TEST(ContextAxis, an_odd_sequence_is_whole_on_one_place) {
  const auto ranges = context_ranges(7, {1, 0});
  ASSERT_EQ(ranges.size(), 1U);
  EXPECT_EQ(ranges[0].first, 0);
  EXPECT_EQ(ranges[0].count, 7);
  EXPECT_THROW((void)context_ranges(6, {2, 0}), InternalError);
}

std::size_t bytes_of(ContextMethod method, ContextAxis::Direction pass, int extent) {
  ContextShape shape;
  shape.sequences = 3;
  shape.tokens = 64;
  shape.heads = 8;
  shape.kv_heads = 4;
  shape.head_dim = 16;
  shape.value_dim = 8;
  ArenaCursor arena;
  ContextAxis::lay_out(arena, shape, extent, method, pass);
  return arena.bytes();
}

TEST(ContextAxis, memory_of_the_methods_is_what_they_hold_at_once) {
  using Direction = ContextAxis::Direction;
  constexpr std::size_t kRows = 3 * 64, kKeys = 4 * (16 + 8) * 4 * kRows,
                        kOut = (8 * 8 + 8) * 4 * kRows;
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    for (const ContextMethod method :
         {ContextMethod::kRing, ContextMethod::kAllGather, ContextMethod::kUlysses})
      EXPECT_EQ(bytes_of(method, direction, 1), 0U);
  }
  // Two blocks, whatever the extent; or all of them.
  EXPECT_EQ(bytes_of(ContextMethod::kRing, Direction::kForward, 2), 2 * kKeys + kOut);
  EXPECT_EQ(bytes_of(ContextMethod::kRing, Direction::kForward, 4), 2 * kKeys + kOut);
  EXPECT_EQ(bytes_of(ContextMethod::kAllGather, Direction::kForward, 4), 4 * kKeys + kOut);
  EXPECT_EQ(bytes_of(ContextMethod::kRing, Direction::kBackward, 4), 5 * kKeys);
  EXPECT_EQ(bytes_of(ContextMethod::kAllGather, Direction::kBackward, 4), 8 * kKeys);
}

}  // namespace
}  // namespace trireme
