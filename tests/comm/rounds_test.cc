#include "comm/rounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace trireme {
namespace {

constexpr int kRanks[] = {1, 2, 3, 4, 5, 7, 8, 13, 64, 1000};

TEST(Rounds, every_piece_reaches_every_rank_in_the_order_of_the_ring) {
  for (const int ranks : kRanks) {
    SCOPED_TRACE(ranks);
    std::vector<std::vector<int>> held(static_cast<std::size_t>(ranks));  // whose pieces
    std::vector<std::vector<GatherRound>> rounds;
    for (int rank = 0; rank < ranks; ++rank) {
      held[static_cast<std::size_t>(rank)] = {rank};
      rounds.push_back(gather_rounds(rank, ranks));
    }
    for (std::size_t i = 0; i < rounds[0].size(); ++i) {
      const auto before = held;
      for (int rank = 0; rank < ranks; ++rank) {
        const GatherRound& mine = rounds[static_cast<std::size_t>(rank)][i];
        const GatherRound& theirs = rounds[static_cast<std::size_t>(mine.from)][i];
        ASSERT_EQ(theirs.to, rank) << "who receives is sent to";
        ASSERT_EQ(theirs.pieces, mine.pieces);
        const std::vector<int>& from = before[static_cast<std::size_t>(mine.from)];
        ASSERT_LE(mine.pieces, std::ssize(from));
        std::copy_n(from.begin(), mine.pieces,
                    std::back_inserter(held[static_cast<std::size_t>(rank)]));
      }
    }
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<int> expected(static_cast<std::size_t>(ranks));
      std::iota(expected.begin(), expected.end(), rank);
      for (int& each : expected) each %= ranks;
      ASSERT_EQ(held[static_cast<std::size_t>(rank)], expected);
    }
  }
}

TEST(Rounds, a_tree_has_every_rank_once_and_its_branches_ascend) {
  for (const int ranks : kRanks) {
    SCOPED_TRACE(ranks);
    // What a rank has when its children have sent: a run of ranks that begins with itself.
    std::vector<int> count(static_cast<std::size_t>(ranks), 1);
    for (int rank = ranks - 1; rank >= 0; --rank) {
      const ReductionTree tree = reduction_tree(rank, ranks);
      EXPECT_EQ(tree.parent < 0, rank == 0);
      for (const int child : tree.children) {
        EXPECT_EQ(reduction_tree(child, ranks).parent, rank);
        EXPECT_EQ(child, rank + count[static_cast<std::size_t>(rank)]);
        count[static_cast<std::size_t>(rank)] += count[static_cast<std::size_t>(child)];
      }
    }
    EXPECT_EQ(count[0], ranks);
  }
}

TEST(Rounds, sixteen_thousand_ranks_meet_few_others) {
  constexpr int kMany = 16384;
  for (const int rank : {0, 1, 4095, 16383}) {
    std::set<int> met;
    for (const GatherRound& round : gather_rounds(rank, kMany)) met.insert({round.to, round.from});
    const ReductionTree tree = reduction_tree(rank, kMany);
    met.insert(tree.children.begin(), tree.children.end());
    EXPECT_LE(met.size(), 28u);
  }
}

}  // namespace
}  // namespace trireme
