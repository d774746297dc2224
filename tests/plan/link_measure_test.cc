#include "plan/link_measure.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(LinkMeasure, latency_is_of_a_message_and_bandwidth_of_what_is_beyond_it) {
  // 10 us a message, then 1 GB/s and 4 GB/s.
  const TransferSeconds transfers[] = {{1024, 1, 10e-6},
                                       {1024, 2, 20e-6},
                                       {16384, 1, 1},  // between both: not looked at
                                       {1e6, 1, 10e-6 + 1e-3},
                                       {4e6, 2, 20e-6 + 1e-3}};
  const Cluster::Link link = link_of(transfers);
  EXPECT_DOUBLE_EQ(link.latency_seconds, 10e-6);
  EXPECT_NEAR(link.bytes_per_second, 2e9, 1);
}

TEST(LinkMeasure, a_latency_that_exceeds_the_whole_leaves_a_bandwidth) {
  const TransferSeconds transfers[] = {{1024, 1, 1e-3}, {1e6, 1, 5e-4}};
  EXPECT_NEAR(link_of(transfers).bytes_per_second, 1e6 / 5e-5, 1);
}

TEST(LinkMeasure, one_rank_has_no_link) {
  Context context({}, 1, detect_isa());
  EXPECT_TRUE(measure_transfers(*make_self_communicator(), context, 1 << 20).empty());
}

}  // namespace
}  // namespace trireme
