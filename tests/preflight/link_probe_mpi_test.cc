#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>

#include "base/trace.h"
#include "preflight/folder_probe.h"
#include "preflight/link_probe.h"
#include "support/mpi_test.h"
#include "support/temporary_directory.h"
#include "train/shared_folder.h"

namespace trireme {
namespace {

TEST(ClockRanks, a_clock_that_is_ahead_is_seen_with_its_error) {
  // Rank r is 3 r seconds ahead.
  const std::int64_t ahead_ns = std::int64_t{3'000'000'000} * test_world().rank();
  const std::vector<ClockOffset> offsets =
      compare_clocks(test_world(), [&] { return steady_now_ns() + ahead_ns; });
  if (test_world().rank() != 0) {
    EXPECT_TRUE(offsets.empty());
    return;
  }
  ASSERT_EQ(std::ssize(offsets), test_world().size());
  for (int rank = 0; rank < test_world().size(); ++rank) {
    const ClockOffset& offset = offsets[static_cast<std::size_t>(rank)];
    EXPECT_LE(std::abs(offset.seconds - 3.0 * rank), offset.error_seconds) << rank;
    EXPECT_GE(offset.error_seconds, 0);
  }
}

TEST(LinkRanks, an_all_reduce_has_one_rate_on_all) {
  Context context({}, 1, detect_isa());
  const auto channel = test_world().channel("rate");
  const double rate = all_reduce_rate(test_world(), *channel, context, 1 << 16);
  EXPECT_GT(rate, 0);
  auto most = static_cast<std::int64_t>(rate);
  test_world().maximum(std::span(&most, 1));
  EXPECT_EQ(most, static_cast<std::int64_t>(rate));
}

TEST(LinkRanks, both_ends_of_a_pair_have_its_rate) {
  Context context({}, 1, detect_isa());
  const int ranks = test_world().size(), rank = test_world().rank();
  for (int round = 0; round < pair_rounds(ranks); ++round) {
    const double rate = pair_rate(test_world(), test_world(), context, round, 1 << 12);
    std::vector<double> all(static_cast<std::size_t>(ranks));
    test_world().all_gather(std::as_bytes(std::span(&rate, 1)),
                            std::as_writable_bytes(std::span(all)));
    const int partner = partner_of(rank, round, ranks);
    EXPECT_EQ(partner < 0, rate == 0);
    EXPECT_EQ(all[static_cast<std::size_t>(partner < 0 ? rank : partner)], rate);
  }
}

TEST(FolderRanks, a_folder_of_another_host_is_told_from_the_same_one) {
  const TemporaryDirectory mine;  // each rank's own
  const std::string first = test_world().broadcast_text(mine.path().string(), 0);
  {
    const FolderMark same(test_launch(), first);
    EXPECT_TRUE(same.appears());
    EXPECT_EQ(same.refused(), "");
    test_world().barrier();
  }
  test_world().barrier();
  EXPECT_TRUE(std::filesystem::is_empty(first)) << "nothing stays";
  test_world().barrier();
  const FolderFacts facts = probe_folder(test_launch(), first);
  EXPECT_TRUE(facts.appears);
  EXPECT_EQ(facts.bytes_per_second > 0, test_launch().local_rank() == 0);
  test_world().barrier();
  EXPECT_TRUE(std::filesystem::is_empty(first));
  test_world().barrier();
  // As where each host has a disk of its own.
  const FolderFacts apart = probe_folder(test_launch(), mine.path());
  EXPECT_EQ(apart.appears, test_world().rank() == 0);
}

TEST(FolderRanks, marks_of_killed_processes_go_and_those_of_others_stay) {
  const TemporaryDirectory mine;
  const std::filesystem::path first = test_world().broadcast_text(mine.path().string(), 0);
  const auto old = mine.write(".trireme-seen-old", "x"),
             young = mine.write(".trireme-seen-young", "x");
  const auto foreign = mine.write(".seen-mine", "x");
  for (const auto& path : {old, foreign})
    std::filesystem::last_write_time(
        path, std::filesystem::last_write_time(young) - std::chrono::minutes(2));
  test_world().barrier();
  const FolderMark mark(test_launch(), first);
  test_world().barrier();
  if (test_world().rank() != 0) return;
  EXPECT_FALSE(std::filesystem::exists(old));
  EXPECT_TRUE(std::filesystem::exists(young));
  EXPECT_TRUE(std::filesystem::exists(foreign));
}

TEST(FolderRanks, where_rank_0_cannot_write_all_know_why) {
  const TemporaryDirectory mine;
  const std::string first = test_world().broadcast_text((mine / "absent").string(), 0);
  EXPECT_NE(probe_folder(test_launch(), first).fault.find("No such file"), std::string::npos);
}

}  // namespace
}  // namespace trireme
