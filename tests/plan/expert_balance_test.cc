#include "plan/expert_balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace trireme {
namespace {

using Load = std::vector<std::int64_t>;
using Experts = std::vector<std::int32_t>;

// The two layers of EPLB's README; what follows was computed by its program with a stable sort.
const Load kFirst = {90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86};
const Load kSecond = {20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27};

std::vector<double> rank_loads(const Load& load, const ExpertBalance& balance, std::size_t ranks) {
  std::vector<double> sums(ranks);
  const std::size_t each = balance.experts.size() / ranks;
  for (std::size_t i = 0; i < balance.experts.size(); ++i) {
    const auto e = static_cast<std::size_t>(balance.experts[i]);
    sums[i / each] += static_cast<double>(load[e]) / balance.counts[e];
  }
  return sums;
}

double most_to_mean(const std::vector<double>& loads) {
  return *std::max_element(loads.begin(), loads.end()) * static_cast<double>(loads.size()) /
         std::accumulate(loads.begin(), loads.end(), 0.0);
}

TEST(ExpertBalance, groups_stay_on_a_node) {
  const ExpertBalanceTask task{16, 8, 4, 2};
  const ExpertBalance first = balance_experts(kFirst, task),
                      second = balance_experts(kSecond, task);
  EXPECT_EQ(first.experts, (Experts{5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1}));
  EXPECT_EQ(second.experts, (Experts{7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1}));
  EXPECT_EQ(first.counts, (Experts{1, 2, 1, 1, 2, 2, 1, 1, 1, 1, 2, 1}));
  EXPECT_EQ(second.counts, (Experts{1, 2, 1, 1, 1, 2, 2, 1, 2, 1, 1, 1}));
  const std::vector<double> loads = rank_loads(kFirst, first, 8);
  EXPECT_EQ(loads, (std::vector<double>{121.5, 86.5, 125, 113, 147.5, 131.5, 156, 152}));
  EXPECT_NEAR(most_to_mean(loads), 1.208, 5e-4);
  const std::vector<double> others = rank_loads(kSecond, second, 8);
  EXPECT_EQ(others, (std::vector<double>{173, 179.5, 120.5, 172, 123, 152, 118.5, 117.5}));
  EXPECT_NEAR(most_to_mean(others), 1.242, 5e-4);
}

TEST(ExpertBalance, replicas_go_anywhere_where_nodes_do_not_divide_groups) {
  const ExpertBalance first = balance_experts(kFirst, {16, 8, 4, 8});
  const ExpertBalance second = balance_experts(kSecond, {16, 8, 4, 8});
  EXPECT_EQ(first.experts, (Experts{10, 6, 10, 7, 0, 2, 11, 4, 5, 9, 5, 4, 8, 3, 1, 1}));
  EXPECT_EQ(second.experts, (Experts{1, 10, 2, 4, 5, 11, 5, 0, 6, 7, 6, 3, 8, 8, 9, 7}));
  EXPECT_NEAR(most_to_mean(rank_loads(kFirst, first, 8)), 1.073, 5e-4);
  EXPECT_NEAR(most_to_mean(rank_loads(kSecond, second, 8)), 1.190, 5e-4);
  EXPECT_EQ(balance_experts(kFirst, {15, 3, 4, 3}).experts,
            (Experts{4, 5, 1, 1, 7, 10, 0, 8, 3, 2, 10, 11, 5, 9, 6}));
  EXPECT_EQ(balance_experts(kSecond, {15, 3, 4, 3}).experts,
            (Experts{7, 6, 9, 11, 4, 1, 5, 8, 8, 10, 2, 5, 6, 3, 0}));
}

TEST(ExpertBalance, without_replicas_each_expert_stands_once) {
  const ExpertBalanceTask task{12, 4, 4, 2};
  EXPECT_EQ(balance_experts(kFirst, task).experts, (Experts{5, 3, 7, 4, 8, 6, 10, 11, 2, 1, 0, 9}));
  EXPECT_EQ(balance_experts(kSecond, task).experts,
            (Experts{6, 9, 11, 8, 7, 10, 5, 3, 4, 1, 2, 0}));
  EXPECT_EQ(balance_experts(kFirst, task).counts, Experts(12, 1));
}

TEST(ExpertPlacement, gives_each_rank_as_many_experts) {
  for (const std::int64_t ranks : {1, 2, 3, 4, 6, 12}) {
    const Experts rank_of = place_experts(kSecond, ranks);
    for (std::int32_t rank = 0; rank < ranks; ++rank)
      EXPECT_EQ(std::count(rank_of.begin(), rank_of.end(), rank), 12 / ranks) << ranks << " ranks";
    EXPECT_LE(load_imbalance(kSecond, rank_of, ranks),
              load_imbalance(kSecond, neighbours_together(12, ranks), ranks));
  }
  EXPECT_LT(load_imbalance(kSecond, place_experts(kSecond, 4), 4), 1.1);
  EXPECT_GT(load_imbalance(kSecond, neighbours_together(12, 4), 4), 1.7);
}

TEST(ExpertPlacement, keeps_neighbours_together_where_nothing_is_gained) {
  // The heaviest first puts 3 + 2 + 2 beside 3 + 2 + 0.
  EXPECT_EQ(place_experts(Load{3, 3, 0, 2, 2, 2}, 2), (Experts{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(place_experts(Load(4, 7), 2), (Experts{0, 0, 1, 1}));
  EXPECT_EQ(place_experts(Load(4, 0), 2), (Experts{0, 0, 1, 1}));
  EXPECT_EQ(load_imbalance(Load(4, 0), Experts{0, 0, 1, 1}, 2), 1);
}

TEST(ExpertPlacement, refuses_ranks_that_do_not_divide_experts) {
  EXPECT_THROW((void)place_experts(kFirst, 5), ConfigError);
  EXPECT_THROW((void)place_experts(kFirst, 24), ConfigError);
}

}  // namespace
}  // namespace trireme
