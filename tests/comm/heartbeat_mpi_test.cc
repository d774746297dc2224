#include <gtest/gtest.h>
#include <unistd.h>

#include "comm/heartbeat.h"
#include "support/mpi_test.h"

namespace trireme {
namespace {

TEST(Heartbeat, every_rank_of_the_host_reads_what_each_published) {
  Heartbeat heartbeat(test_launch());
  Beat beat;
  beat.pid = ::getpid();
  beat.rank = test_world().rank();
  beat.channel = {'c'};
  for (int step = 1; step <= 3 + beat.rank; ++step) {
    beat.step = step;
    heartbeat.publish(beat);
  }
  test_world().barrier();

  const std::vector<Beat> beats = heartbeat.read();

  ASSERT_EQ(beats.size(), static_cast<std::size_t>(test_launch().local_size()));
  for (int rank = 0; rank < test_world().size(); ++rank) {
    const Beat& theirs = beats[static_cast<std::size_t>(rank)];
    EXPECT_EQ(theirs.rank, rank);
    EXPECT_EQ(theirs.step, 3 + rank);
    EXPECT_EQ(theirs.pid == ::getpid(), rank == test_world().rank());
    EXPECT_STREQ(theirs.channel.data(), "c");
  }
}

TEST(Heartbeat, an_entry_is_never_torn_while_others_read) {
  Heartbeat heartbeat(test_launch());
  for (std::int64_t i = 1; i <= 20000; ++i) {
    Beat beat;
    beat.pid = 1;
    beat.step = beat.progress_ns = beat.sequence = beat.transfer_bytes = i;
    heartbeat.publish(beat);
    for (const Beat& theirs : heartbeat.read()) {
      ASSERT_TRUE(theirs.step == theirs.progress_ns && theirs.step == theirs.sequence &&
                  theirs.step == theirs.transfer_bytes);
    }
  }
  test_world().barrier();
}

TEST(Heartbeat, a_rank_that_published_nothing_has_no_pid) {
  Heartbeat heartbeat(test_launch());
  for (const Beat& beat : heartbeat.read()) EXPECT_EQ(beat.pid, 0);
}

}  // namespace
}  // namespace trireme
