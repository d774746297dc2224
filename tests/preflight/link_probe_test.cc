#include "preflight/link_probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace trireme {
namespace {

TEST(Pairs, each_rank_meets_another_one_in_each_round) {
  for (int ranks = 1; ranks <= 33; ++ranks) {
    SCOPED_TRACE(ranks);
    std::set<std::pair<int, int>> seen;
    for (int round = 0; round < pair_rounds(ranks); ++round) {
      for (int rank = 0; rank < ranks; ++rank) {
        const int partner = partner_of(rank, round, ranks);
        if (partner < 0) continue;
        ASSERT_LT(partner, ranks);
        ASSERT_NE(partner, rank);
        EXPECT_EQ(partner_of(partner, round, ranks), rank);
        EXPECT_TRUE(seen.emplace(rank, partner).second);
      }
    }
    // Nobody is left out.
    for (int rank = 0; rank < ranks && ranks > 1; ++rank) {
      const bool met = std::any_of(seen.begin(), seen.end(),
                                   [&](const auto& pair) { return pair.first == rank; });
      EXPECT_TRUE(met) << rank;
    }
  }
  EXPECT_EQ(pair_rounds(1), 0);
  EXPECT_EQ(pair_rounds(2), 1);
  EXPECT_EQ(pair_rounds(8), 3);
  EXPECT_EQ(pair_rounds(9), 4);
}

TEST(Pairs, compare_where_as_many_share_the_way) {
  // Three ranks a host: 2-3 and 1-3 cross alone, 0-4 and 1-5 together.
  const RankHosts hosts({0, 0, 0, 1, 1, 1}, {"a", "b"});
  EXPECT_EQ(kind_of_pair(2, 0, hosts), kind_of_pair(3, 0, hosts));
  EXPECT_EQ(kind_of_pair(2, 0, hosts), kind_of_pair(1, 1, hosts));
  EXPECT_NE(kind_of_pair(2, 0, hosts), kind_of_pair(0, 2, hosts));
  EXPECT_EQ(kind_of_pair(0, 2, hosts), kind_of_pair(5, 2, hosts));
  EXPECT_NE(kind_of_pair(0, 0, hosts), kind_of_pair(0, 2, hosts)) << "in a host and across";
  const RankHosts one_each({0, 1}, {"a", "b"});
  EXPECT_EQ(kind_of_pair(2, 0, hosts), kind_of_pair(0, 0, one_each)) << "pairs in hosts are apart";
}

}  // namespace
}  // namespace trireme
