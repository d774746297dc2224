#include "guard/hang.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

namespace trireme {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

RankSight sight(int rank, std::int64_t sequence, int running) {
  RankSight made;
  made.process_state = 'S';
  made.beat.pid = 1000 + rank;
  made.beat.rank = rank;
  made.beat.step = 7;
  made.beat.progress_ns = 10 * kSecond;
  made.beat.transfer_sequence = sequence;
  made.beat.transfer_bytes = 4096;
  made.beat.transfer_running = running;
  made.beat.standing.phase = Phase::kCommunication;
  std::string_view("all_reduce").copy(made.beat.operation.data(), 23);
  std::string_view("data.reduce").copy(made.beat.channel.data(), 23);
  return made;
}

HangReport describe(std::vector<RankSight> ranks, std::string_view elsewhere = "") {
  return describe_hang(ranks, "host-a", 75 * kSecond, 60, elsewhere);
}

TEST(Patience, gives_the_first_steps_load_save_and_evaluation_ten_minutes) {
  Patience patience(0);
  for (int step = 0; step < 5; ++step) {
    EXPECT_EQ(patience.limit_seconds(Phase::kForward), 600) << step;
    patience.step_finished(1);
  }
  EXPECT_EQ(patience.limit_seconds(Phase::kForward), 60);
  EXPECT_EQ(patience.limit_seconds_of_stopped(), 60);
  EXPECT_EQ(patience.limit_seconds(Phase::kCheckpoint), 600);
  EXPECT_EQ(patience.limit_seconds(Phase::kEvaluation), 600);
}

TEST(Patience, waits_five_times_the_slowest_of_the_last_20_steps) {
  Patience patience(0);
  patience.step_finished(200);
  for (int step = 0; step < 19; ++step) patience.step_finished(13);
  EXPECT_EQ(patience.limit_seconds(Phase::kForward), 1000);
  EXPECT_EQ(patience.limit_seconds(Phase::kCheckpoint), 1000);
  patience.step_finished(13);
  EXPECT_EQ(patience.limit_seconds(Phase::kForward), 65);
}

TEST(Patience, takes_the_configs_value_from_the_first_step_on) {
  Patience patience(9);
  EXPECT_EQ(patience.limit_seconds(Phase::kForward), 9);
  EXPECT_EQ(patience.limit_seconds(Phase::kStart), 90) << "loading";
  EXPECT_EQ(patience.limit_seconds(Phase::kCheckpoint), 90);
  patience.step_finished(100);
  EXPECT_EQ(patience.limit_seconds(Phase::kStart), 9) << "between steps";
  EXPECT_EQ(Patience(2).limit_seconds(Phase::kCheckpoint), 60);
  EXPECT_EQ(Patience(2).limit_seconds_of_stopped(), 2);
}

TEST(DescribeHang, names_a_stopped_rank_with_its_phase) {
  std::vector<RankSight> ranks{sight(0, 12, 1), sight(1, 11, 0), sight(2, 12, 1)};
  ranks[1].process_state = 'T';
  ranks[1].beat.standing.phase = Phase::kBackwardInput;

  const HangReport report = describe(ranks);

  EXPECT_TRUE(report.culprit_found);
  EXPECT_EQ(report.reason,
            "no progress on host-a for 65 s: rank 1 (stopped (SIGSTOP or a debugger); step 7, "
            "phase backward_input)");
  EXPECT_NE(
      report.text.find(
          "rank 0 on host-a, pid 1000, alive: step 7, phase communication, in all_reduce #12 on "
          "data.reduce, 4.00 KiB; last progress 65.0 s ago\n"),
      std::string::npos)
      << report.text;
  EXPECT_NE(report.text.find("run.hang_timeout_seconds"), std::string::npos);
}

TEST(DescribeHang, names_the_rank_outside_of_the_collective) {
  const HangReport report = describe({sight(0, 12, 1), sight(1, 12, 1), sight(2, 11, 0)});
  EXPECT_NE(report.reason.find("rank 2 (alive"), std::string::npos) << report.reason;
  EXPECT_EQ(report.reason.find("rank 0"), std::string::npos) << report.reason;
}

TEST(DescribeHang, names_the_rank_in_the_lowest_collective) {
  const HangReport report = describe({sight(0, 11, 1), sight(1, 12, 1)});
  EXPECT_NE(report.reason.find("rank 0 (alive"), std::string::npos) << report.reason;
  EXPECT_EQ(report.reason.find("rank 1"), std::string::npos) << report.reason;
}

TEST(DescribeHang, names_nobody_where_all_stand_at_one_place) {
  EXPECT_FALSE(describe({sight(0, 12, 1), sight(1, 12, 1)}).culprit_found);
}

TEST(DescribeHang, looks_elsewhere_where_all_of_a_host_wait) {
  for (const auto& ranks : {std::vector{sight(0, 12, 1)}, {sight(0, 12, 1), sight(1, 12, 1)}}) {
    const HangReport report = describe(ranks, "host-b (rank 2)");
    EXPECT_FALSE(report.culprit_found);
    EXPECT_NE(report.reason.find("no rank of host-a is behind, but elsewhere: host-b (rank 2)"),
              std::string::npos)
        << report.reason;
  }
}

TEST(DescribeHang, names_all_of_a_host_where_they_are_in_no_collective) {
  for (const auto& ranks : {std::vector{sight(0, 12, 0)}, {sight(0, 12, 0), sight(1, 12, 0)}}) {
    const HangReport report = describe(ranks, "host-b (rank 2)");
    EXPECT_TRUE(report.culprit_found);
    EXPECT_NE(report.reason.find("rank 0 (alive"), std::string::npos) << report.reason;
  }
}

TEST(ListHosts, names_hosts_with_their_ranks) {
  const std::vector<HostRanks> hosts = {{"b", {2}}, {"c", {3, 4, 5}}, {"d", {0, 6}}};
  EXPECT_EQ(list_hosts(hosts), "b (rank 2), c (ranks 3 to 5), d (ranks 0, 6)");
  EXPECT_EQ(list_hosts({}), "");
  EXPECT_TRUE(list_hosts(std::vector<HostRanks>(10, {"e", {1}})).ends_with(" and 2 more"));
}

/// The `sequence`-th collective of group 7 or another.
BeatTransfer transfer(std::int64_t sequence, std::string_view operation, std::int64_t bytes,
                      int running, std::uint32_t group = 7) {
  BeatTransfer made;
  made.id = {group, sequence};
  made.bytes = bytes;
  made.running = running;
  operation.copy(made.operation.data(), 23);
  (group == 7 ? std::string_view("tensor") : std::string_view("world"))
      .copy(made.channel.data(), 23);
  return made;
}

RankSight sight_with(int rank, std::vector<BeatTransfer> recent) {
  RankSight made = sight(rank, 12, 1);
  made.beat.transfers = static_cast<std::uint32_t>(recent.size());
  std::copy(recent.begin(), recent.end(), made.beat.recent.begin());
  return made;
}

TEST(DescribeDesync, sees_another_size_or_operation_at_the_same_number_of_a_group) {
  const RankSight one = sight_with(0, {transfer(4, "all_reduce", 2048, 1)});
  const auto beside = [&](const BeatTransfer& other) {
    return describe_desync(std::vector{one, sight_with(1, {other})});
  };
  EXPECT_EQ(beside(transfer(4, "all_reduce", 1024, 1)),
            "rank 0 entered all_reduce 4 of 2.00 KiB on tensor, rank 1 all_reduce 4 of 1.00 KiB on "
            "tensor");
  EXPECT_NE(beside(transfer(4, "all_gather", 2048, 1)), "");
  EXPECT_EQ(beside(transfer(4, "all_reduce", 2048, 1)), "") << "slow";
  EXPECT_EQ(beside(transfer(3, "all_gather", 1024, 0)), "") << "late";
  EXPECT_EQ(beside(transfer(4, "all_gather", 1024, 1, 8)), "") << "of another group";
  const HangReport report = describe({one, sight_with(1, {transfer(4, "all_gather", 2048, 1)})});
  EXPECT_TRUE(report.culprit_found);
  EXPECT_NE(report.text.find("Collectives out of step: rank 0"), std::string::npos) << report.text;
  EXPECT_EQ(report.text.find("raise run.hang_timeout_seconds"), std::string::npos) << report.text;
}

TEST(DescribeDesync, lets_texts_differ_in_length) {
  EXPECT_EQ(describe_desync(std::vector{sight_with(0, {transfer(4, "all_gather_text", 9, 1)}),
                                        sight_with(1, {transfer(4, "all_gather_text", 5, 1)})}),
            "");
}

TEST(DescribeDesync, sees_two_groups_entered_in_different_orders) {
  const RankSight a =
      sight_with(0, {transfer(8, "all_reduce", 64, 0, 8), transfer(4, "all_reduce", 64, 1)});
  const RankSight b =
      sight_with(1, {transfer(3, "all_reduce", 64, 0), transfer(9, "all_reduce", 64, 1, 8)});
  EXPECT_EQ(describe_desync(std::vector{a, b}),
            "rank 0 waits in all_reduce 4 of 64 B on tensor, rank 1 in all_reduce 9 of 64 B on "
            "world");
  RankSight computing = b;
  computing.beat.recent[1].running = 0;
  EXPECT_EQ(describe_desync(std::vector{a, computing}), "");
}

TEST(DescribeHang, says_which_collective_a_rank_never_entered) {
  RankSight late = sight_with(2, {transfer(3, "all_reduce", 2048, 0)});
  late.beat.transfer_running = 0;
  late.beat.standing = {Phase::kForward, 'F', 3, 11};
  const HangReport report = describe({sight_with(0, {transfer(4, "all_reduce", 2048, 1)}),
                                      sight_with(1, {transfer(4, "all_reduce", 2048, 1)}), late});
  EXPECT_NE(report.text.find("Rank 0, 1 wait in all_reduce 4 of 2.00 KiB on tensor, which rank 2 "
                             "never entered."),
            std::string::npos)
      << report.text;
  EXPECT_NE(report.reason.find("rank 2 (alive; step 7, phase forward, action F of stage 3, "
                               "micro-batch 11)"),
            std::string::npos)
      << report.reason;
}

TEST(DescribeHang, one_rank_waits_in_the_singular) {
  RankSight late = sight_with(1, {transfer(3, "all_reduce", 2048, 0)});
  late.beat.transfer_running = 0;
  late.beat.standing = {Phase::kForward, 'F', 3, 11};
  const HangReport report = describe({sight_with(0, {transfer(4, "all_reduce", 2048, 1)}), late});
  EXPECT_NE(report.text.find("Rank 0 waits in all_reduce 4 of 2.00 KiB on tensor, which rank 1 "),
            std::string::npos)
      << report.text;
}

TEST(DescribeHang, names_the_only_rank_there_is) {
  RankSight alone = sight(0, 0, 0);
  alone.beat.standing.phase = Phase::kData;
  const HangReport report = describe({alone});
  EXPECT_NE(report.reason.find("rank 0 (alive; step 7, phase data)"), std::string::npos)
      << report.reason;
  EXPECT_NE(report.text.find("no collective so far"), std::string::npos);
}

TEST(ProcessState, tells_living_from_gone) {
  EXPECT_FALSE(out_of_action(process_state_of(::getpid())));
  EXPECT_EQ(process_state_of(0x7ffffff0), '-');
  EXPECT_TRUE(out_of_action('-'));
  EXPECT_TRUE(out_of_action('T'));
  EXPECT_FALSE(is_dead('T'));
  EXPECT_FALSE(is_dead('D')) << "slow";
  EXPECT_FALSE(is_dead('?'));
}

TEST(ProcessState, takes_a_process_that_cannot_be_looked_at_for_no_dead_one) {
  rlimit kept{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &kept), 0);
  rlimit none = kept;
  none.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const char seen = process_state_of(::getppid()), gone = process_state_of(0x7ffffff0);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &kept), 0);
  EXPECT_EQ(seen, '?');
  EXPECT_EQ(gone, '-');
}

TEST(Patience, leaves_the_launcher_more_time_where_it_ends_the_others_of_a_dead_rank_itself) {
  EXPECT_GT(Patience::limit_seconds_of_dead(false), 1) << "Open MPI's SIGTERM comes after a second";
  EXPECT_GT(Patience::limit_seconds_of_dead(true), 2) << "its SIGKILL after two";
  EXPECT_LT(Patience::limit_seconds_of_dead(true), 4);
}

}  // namespace
}  // namespace trireme
