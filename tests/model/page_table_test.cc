#include "model/page_table.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"

namespace trireme {
namespace {

TEST(PageTable, sequences_take_pages_as_they_grow_and_give_them_back) {
  PageTable table(3, 3, 5);
  EXPECT_EQ(PageTable::pages_of(0), 0);
  EXPECT_EQ(PageTable::pages_of(64), 1);
  EXPECT_EQ(PageTable::pages_of(65), 2);
  table.extend(0, 64);
  EXPECT_EQ(table.free_pages(), 4);
  table.extend(1, 1);
  table.extend(0, 1);
  EXPECT_EQ(table.free_pages(), 2);
  EXPECT_EQ(table.length(0), 65);
  std::set<std::int32_t> rows;
  for (std::int64_t i = 0; i < 65; ++i) rows.insert(table.row_of(0, i));
  rows.insert(table.row_of(1, 0));
  EXPECT_EQ(rows.size(), 66U) << "no two tokens in one row";
  EXPECT_LT(*rows.rbegin(), 5 * 64);
  EXPECT_EQ(table.row_of(0, 63), table.row_of(0, 0) + 63);
  EXPECT_EQ(table.table()[1], table.pages(0)[1]);
  table.end(0);
  EXPECT_EQ(table.free_pages(), 4);
  EXPECT_EQ(table.length(0), 0);
  table.extend(2, 192);
  EXPECT_EQ(table.free_pages(), 1);
}

TEST(PageTable, refuses_what_does_not_fit_and_stays_as_it_was) {
  PageTable table(2, 3, 4);
  table.extend(0, 150);
  EXPECT_THROW(table.extend(0, 43), InternalError) << "longer than a sequence may be";
  EXPECT_THROW(table.extend(1, 65), InternalError) << "more pages than are free";
  EXPECT_EQ(table.length(0), 150);
  EXPECT_EQ(table.length(1), 0);
  table.extend(0, 42);
  table.extend(1, 64);
  EXPECT_EQ(table.free_pages(), 0);
}

TEST(PageRing, what_a_pass_sees_has_rows_of_its_own_wherever_it_begins) {
  constexpr std::int64_t kSequences = 2, kPagesEach = 12;
  for (const std::int64_t window : {1, 4, 64, 66, 200}) {
    for (const std::int64_t tokens : {1, 63, 140}) {
      const std::int64_t pages = PageRing::pages_of(window, tokens);
      const PageRing ring(kSequences, kPagesEach, pages);
      std::set<std::int32_t> first_sequence;
      for (std::int64_t last = window + tokens; last < kPagesEach * 64; ++last) {
        std::set<std::int32_t> rows;
        const std::int64_t begin = last - tokens - window + 2;
        for (std::int64_t at = begin; at <= last; ++at) rows.insert(ring.row_of(0, at));
        EXPECT_EQ(std::ssize(rows), last + 1 - begin) << window << ", " << tokens << ", " << last;
        first_sequence.insert(rows.begin(), rows.end());
      }
      EXPECT_EQ(*first_sequence.rbegin(), pages * 64 - 1) << "all of the ring, and no more";
      EXPECT_EQ(ring.row_of(1, 0), pages * 64) << "the next sequence's is behind";
      EXPECT_EQ(ring.pages(1)[static_cast<std::size_t>(pages)], ring.pages(1)[0]);
      EXPECT_EQ(std::ssize(ring.table()), kSequences * kPagesEach);
    }
  }
}

}  // namespace
}  // namespace trireme
