#include "preflight/findings.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using Ranks = std::vector<int>;
using Texts = std::vector<std::string>;

/// Two hosts of two ranks each.
RankHosts two_hosts() { return {{0, 0, 1, 1}, {"a", "b"}}; }
RankHosts one_host(int ranks) { return {std::vector<int>(ranks, 0), {"a"}}; }
std::string plain(double value) { return fmt::format("{:g}", value); }

TEST(RankHosts, name_ranks_by_their_hosts) {
  const RankHosts hosts({0, 1, 0, 0, 1, 0}, {"a", "b"});
  EXPECT_EQ(hosts.text(Ranks{4}), "rank 4 on b");
  EXPECT_EQ(hosts.text(Ranks{0, 1, 2, 3}), "ranks 0,2-3 on a, 1 on b");
  EXPECT_EQ(hosts.ranks_of(1), (Ranks{1, 4}));
  EXPECT_FALSE(hosts.even());
  EXPECT_TRUE(two_hosts().even());
}

TEST(RankHosts, of_many_hosts_some_are_named) {
  Ranks index;
  Texts names;
  for (int i = 0; i < 40; ++i) {
    index.push_back(i);
    names.push_back("h" + std::to_string(i));
  }
  const std::string text = RankHosts(index, names).text(index);
  EXPECT_NE(text.find("15 on h15 and 24 hosts"), std::string::npos) << text;
}

TEST(Hosts, have_names_of_their_own) {
  EXPECT_EQ(hosts_apart(two_hosts()).status, FindingStatus::kOk);
  EXPECT_EQ(hosts_apart(two_hosts()).found, "4 ranks on 2 hosts");
  const Finding finding = hosts_apart({{0, 1, 2, 0, 1}, {"node", "b", "node"}});
  EXPECT_EQ(finding.status, FindingStatus::kOdd);
  EXPECT_EQ(finding.ranks, (Ranks{0, 2, 3}));
  EXPECT_EQ(finding.found, "2 hosts are called node");
}

TEST(Hosts, with_other_numbers_of_ranks_are_a_note) {
  const Finding finding = hosts_apart({{0, 0, 1}, {"a", "b"}});
  EXPECT_EQ(finding.status, FindingStatus::kNote);
  EXPECT_FALSE(finding.failed());
}

TEST(EqualEverywhere, what_most_have_is_right) {
  const Finding finding =
      equal_everywhere("CPU", Texts{"old", "new", "new", "new"}, two_hosts(), "swap it");
  EXPECT_EQ(finding.status, FindingStatus::kOdd);
  EXPECT_EQ(finding.ranks, Ranks{0});
  EXPECT_EQ(finding.found, "rank 0 on a: old");
  EXPECT_EQ(finding.expected, "new");
  EXPECT_EQ(finding.advice, "swap it");
}

TEST(EqualEverywhere, of_as_many_the_first_rank_is_right) {
  const Finding finding = equal_everywhere("CPU", Texts{"z", "z", "a", "a"}, two_hosts(), "");
  EXPECT_EQ(finding.ranks, (Ranks{2, 3}));
  EXPECT_EQ(finding.expected, "z");
}

TEST(EqualEverywhere, ranks_that_say_nothing_do_not_count) {
  const Finding same = equal_everywhere("data", Texts{"x", "", "x", ""}, two_hosts(), "advice");
  EXPECT_EQ(same.status, FindingStatus::kOk);
  EXPECT_EQ(same.found, "x");
  EXPECT_EQ(same.advice, "");
  EXPECT_EQ(equal_everywhere("data", Texts{"", ""}, one_host(2), "").found, "");
}

TEST(EqualEverywhere, each_odd_text_is_told) {
  const Finding finding = equal_everywhere("driver", Texts{"1", "1", "2", "3"}, two_hosts(), "");
  EXPECT_EQ(finding.ranks, (Ranks{2, 3}));
  EXPECT_EQ(finding.found, "rank 2 on b: 2; rank 3 on b: 3");
}

TEST(Below, is_beside_the_median_of_its_kind) {
  const std::vector<Rate> rates = {{100, 1}, {89, 1}, {91, 1}, {100, 1}, {10, 2}, {10, 2}, {0, 1}};
  EXPECT_EQ(median_of_kind(rates, 1), 100);
  EXPECT_EQ(below(rates, 0.9), (std::vector<std::size_t>{1}));
}

TEST(Below, one_of_its_kind_is_never_slow) {
  EXPECT_TRUE(below(std::vector<Rate>{{100, 1}, {1, 2}}, 0.9).empty());
}

TEST(Below, of_two_the_faster_is_the_measure) {
  EXPECT_EQ(below(std::vector<Rate>{{100, 1}, {89, 1}}, 0.9), (std::vector<std::size_t>{1}));
  EXPECT_TRUE(below(std::vector<Rate>{{100, 1}, {91, 1}}, 0.9).empty());
}

TEST(FastEverywhere, names_the_slow_rank_its_figure_and_the_median) {
  const std::vector<Rate> rates = {{50, 0}, {51, 0}, {40, 0}, {50, 0}};
  const Finding finding = fast_everywhere("products", rates, 0.9, two_hosts(), plain);
  EXPECT_EQ(finding.status, FindingStatus::kSlow);
  EXPECT_EQ(finding.ranks, Ranks{2});
  EXPECT_EQ(finding.found, "rank 2 on b: 40");
  EXPECT_EQ(finding.expected, "median 50");
}

TEST(FastEverywhere, tells_the_range_where_all_is_well) {
  const std::vector<Rate> rates = {{50, 0}, {0, 0}, {46, 0}, {50, 0}};
  const Finding finding = fast_everywhere("products", rates, 0.9, two_hosts(), plain);
  EXPECT_EQ(finding.status, FindingStatus::kOk);
  EXPECT_EQ(finding.found, "46 to 50");
  EXPECT_EQ(fast_everywhere("x", std::vector<Rate>(4), 0.9, two_hosts(), plain).found,
            "not measured");
}

TEST(Speeds, a_rank_whose_core_others_take_is_slow_and_told_why) {
  const std::vector<Speed> speeds = {{100, 1, 0}, {52, 0.52, 0}, {99, 0.99, 0}, {100, 1, 0}};
  EXPECT_FALSE(hosts_are_busy(speeds));
  const Finding finding = speeds_alike("products", speeds, two_hosts(), plain);
  EXPECT_EQ(finding.status, FindingStatus::kSlow);
  EXPECT_EQ(finding.ranks, Ranks{1});
  EXPECT_NE(finding.advice.find("for 52 % of the time"), std::string::npos) << finding.advice;
}

TEST(Speeds, on_busy_hosts_nobody_is_slow_by_chance) {
  const std::vector<Speed> speeds = {{80, 0.8, 0}, {20, 0.22, 0}, {50, 0.5, 0}, {60, 0.6, 0}};
  EXPECT_TRUE(hosts_are_busy(speeds));
  const Finding finding = speeds_alike("products", speeds, two_hosts(), plain);
  EXPECT_EQ(finding.status, FindingStatus::kNote);
  EXPECT_TRUE(finding.ranks.empty());
  EXPECT_EQ(finding.found, "20 to 80");
  EXPECT_NE(finding.advice.find("22 to 80 %"), std::string::npos) << finding.advice;
}

TEST(Speeds, a_slow_core_shows_on_busy_hosts_too) {
  const std::vector<Speed> speeds = {{80, 0.8, 0}, {10, 0.6, 0}, {50, 0.5, 0}, {60, 0.6, 0}};
  const Finding finding = speeds_alike("products", speeds, two_hosts(), plain);
  EXPECT_EQ(finding.status, FindingStatus::kSlow);
  EXPECT_EQ(finding.ranks, Ranks{1});
}

/// All pairs of four ranks in rounds, those of `slow` at a tenth.
std::vector<GroupRate> pairs(const std::vector<std::pair<int, int>>& slow) {
  std::vector<GroupRate> all;
  for (const auto& [low, high] : {std::pair(0, 1), {2, 3}, {0, 2}, {1, 3}}) {
    const bool is_slow = std::find(slow.begin(), slow.end(), std::pair(low, high)) != slow.end();
    all.push_back({{low, high}, {is_slow ? 1.0 : 10.0, 0}});
  }
  return all;
}

TEST(FastLinks, a_slow_link_is_named_by_both_ends) {
  const Finding finding = fast_links("pairs", pairs({{0, 2}}), 0.5, two_hosts(), plain);
  EXPECT_EQ(finding.status, FindingStatus::kSlow);
  EXPECT_EQ(finding.ranks, (Ranks{0, 2}));
  EXPECT_EQ(finding.found, "ranks 0 on a, 2 on b: 1");
  EXPECT_EQ(finding.expected, "median 10");
}

TEST(FastLinks, a_rank_with_all_links_slow_is_named_alone) {
  const Finding finding = fast_links("pairs", pairs({{2, 3}, {0, 2}}), 0.5, two_hosts(), plain);
  EXPECT_EQ(finding.ranks, Ranks{2});
}

TEST(FastLinks, a_rank_with_one_link_cannot_be_told_from_the_other_end) {
  const std::vector<GroupRate> pairs = {{{0, 1}, {10, 0}}, {{0, 2}, {1, 0}}};
  EXPECT_EQ(fast_links("pairs", pairs, 0.5, one_host(3), plain).ranks, (Ranks{0, 2}));
}

TEST(FastLinks, a_slow_rank_does_not_hide_a_slow_link) {
  std::vector<GroupRate> pairs;
  for (const auto& [low, high] : {std::pair(0, 1),
                                  {2, 3},
                                  {4, 5},
                                  {6, 7},
                                  {0, 2},
                                  {1, 3},
                                  {4, 6},
                                  {5, 7},
                                  {0, 4},
                                  {1, 5},
                                  {2, 6},
                                  {3, 7}}) {
    const bool slow = low == 2 || high == 2 || (low == 5 && high == 7);
    pairs.push_back({{low, high}, {slow ? 1.0 : 10.0, 0}});
  }
  EXPECT_EQ(fast_links("pairs", pairs, 0.5, one_host(8), plain).ranks, (Ranks{2, 5, 7}));
}

TEST(FastLinks, where_all_are_alike_none_is_slow) {
  EXPECT_EQ(fast_links("pairs", pairs({}), 0.5, two_hosts(), plain).status, FindingStatus::kOk);
}

TEST(Cores, a_thread_has_its_own_or_shares) {
  const std::vector<CoreUse> apart = {{{0}, 1}, {{1}, 1}};
  EXPECT_DOUBLE_EQ(threads_of_cpu(apart, 0), 1);
  const std::vector<CoreUse> unbound(2, {{0, 1}, 1});
  EXPECT_DOUBLE_EQ(threads_of_cpu(unbound, 1), 1);
  const std::vector<CoreUse> shared(4, {{0, 1}, 1});
  EXPECT_DOUBLE_EQ(threads_of_cpu(shared, 2), 2);
  // Rank 0 is kept on a core that rank 1 may use too.
  const std::vector<CoreUse> overlap = {{{0}, 1}, {{0, 1}, 2}, {{2}, 1}};
  EXPECT_DOUBLE_EQ(threads_of_cpu(overlap, 0), 2);
  EXPECT_DOUBLE_EQ(threads_of_cpu(overlap, 1), 1.5);
  EXPECT_DOUBLE_EQ(threads_of_cpu(overlap, 2), 1);
}

TEST(Cores, a_quota_is_shared_by_the_ranks_of_a_host) {
  const std::vector<CoreUse> limited(4, {{0, 1, 2, 3, 4, 5, 6, 7}, 1, 2});
  EXPECT_DOUBLE_EQ(threads_of_cpu(limited, 0), 2);
}

TEST(Cores, ranks_take_turns_only_where_they_share) {
  EXPECT_EQ(turns_of(std::vector<CoreUse>{{{0}, 1}, {{1}, 1}}).count, 1);
  EXPECT_EQ(turns_of(std::vector<CoreUse>(2, {{0, 1}, 1})).count, 1);
  const TurnOrder two = turns_of(std::vector<CoreUse>{{{0}, 1}, {{1}, 1}, {{0}, 1}, {{1}, 1}});
  EXPECT_EQ(two.count, 2);
  EXPECT_EQ(two.of, (Ranks{0, 0, 1, 1}));
  EXPECT_EQ(turns_of(std::vector<CoreUse>(3, {{0, 1}, 1})).count, 3);
}

TEST(Cores, sharing_by_all_is_a_note_and_by_some_is_odd) {
  EXPECT_EQ(cores_apart(std::vector<double>{1.0, 1.0}, one_host(2)).status, FindingStatus::kOk);
  EXPECT_EQ(cores_apart(std::vector<double>{2.0, 2.0}, one_host(2)).status, FindingStatus::kNote);
  const Finding odd = cores_apart(std::vector<double>{1.0, 1.0, 2.0, 1.5}, two_hosts());
  EXPECT_EQ(odd.status, FindingStatus::kOdd);
  EXPECT_EQ(odd.ranks, (Ranks{2, 3}));
  EXPECT_EQ(odd.found, "ranks 2-3 on b: up to 2 threads share a core");
}

TEST(Clocks, a_host_beside_the_others_is_named) {
  const RankHosts three({0, 1, 1, 2}, {"a", "b", "c"});
  const Finding finding =
      clocks_agree(std::vector<ClockOffset>{{0, 0}, {5, 0.1}, {0.2, 0.1}}, three);
  EXPECT_EQ(finding.status, FindingStatus::kOdd);
  EXPECT_EQ(finding.ranks, (Ranks{1, 2}));
  EXPECT_EQ(finding.found, "b: 4.80s ahead");
}

TEST(Clocks, rank_0_itself_may_be_wrong) {
  const RankHosts three({0, 1, 2}, {"a", "b", "c"});
  const Finding finding = clocks_agree(std::vector<ClockOffset>{{0, 0}, {9, 0}, {9, 0}}, three);
  EXPECT_EQ(finding.ranks, Ranks{0});
  EXPECT_EQ(finding.found, "a: 9.00s behind");
}

TEST(Clocks, what_the_way_may_have_taken_is_no_fault) {
  EXPECT_EQ(clocks_agree(std::vector<ClockOffset>{{0, 0}, {1.5, 0.6}}, two_hosts()).status,
            FindingStatus::kOk);
  EXPECT_EQ(clocks_agree(std::vector<ClockOffset>{{0, 0}, {-1.5, 0.4}}, two_hosts()).status,
            FindingStatus::kOdd);
}

}  // namespace
}  // namespace trireme
