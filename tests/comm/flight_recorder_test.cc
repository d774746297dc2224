#include "comm/flight_recorder.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(FlightRecorder, keeps_the_last_64_in_order) {
  FlightRecorder recorder;
  for (int i = 1; i <= 100; ++i) EXPECT_EQ(recorder.begin("broadcast", 10 * i, "world"), i);

  const auto records = recorder.records();

  ASSERT_EQ(records.size(), 64U);
  EXPECT_EQ(records.front().sequence, 37);
  EXPECT_EQ(records.back().sequence, 100);
  EXPECT_EQ(records.back().bytes, 1000);
  EXPECT_EQ(recorder.last_sequence(), 100);
}

TEST(FlightRecorder, points_at_the_oldest_transfer_under_way_else_at_the_newest) {
  FlightRecorder recorder;
  EXPECT_EQ(recorder.current().sequence, 0);
  const std::int64_t first = recorder.begin("all_reduce", 8, "gradients");
  const std::int64_t second = recorder.begin("barrier", 0, "world");

  EXPECT_EQ(recorder.current().sequence, first);
  recorder.end(first);
  EXPECT_EQ(recorder.current().sequence, second);
  recorder.end(second);
  EXPECT_EQ(recorder.current().sequence, second);
  EXPECT_NE(recorder.current().end_ns, 0);
}

TEST(FlightRecorder, gives_the_newest_and_the_oldest_under_way) {
  FlightRecorder recorder;
  const std::int64_t old = recorder.begin("all_reduce", 8, "gradients", {5, 1});
  for (int i = 0; i < 9; ++i) recorder.end(recorder.begin("barrier", i, "world", {6, i + 1}));
  std::array<TransferRecord, 4> records;

  ASSERT_EQ(recorder.recent(records), 4U);
  EXPECT_EQ(records[0].sequence, old);
  EXPECT_EQ(records[0].id.group, 5U);
  EXPECT_EQ(records[1].sequence, 8);
  EXPECT_EQ(records[3].id.sequence, 9);
  recorder.end(old);
  ASSERT_EQ(recorder.recent(records), 4U);
  EXPECT_EQ(records[0].sequence, 7);
  EXPECT_EQ(FlightRecorder().recent(records), 0U);
}

TEST(FlightRecorder, the_end_of_a_forgotten_transfer_changes_nothing) {
  FlightRecorder recorder;
  const std::int64_t old = recorder.begin("all_reduce", 8, "gradients");
  for (int i = 0; i < 64; ++i) recorder.begin("barrier", 0, "world");

  recorder.end(old);

  for (const auto& record : recorder.records()) EXPECT_EQ(record.end_ns, 0);
}

TEST(FlightRecorder, cuts_long_channel_names) {
  FlightRecorder recorder;
  recorder.begin("barrier", 0, "a name much longer than the place that a record has");

  EXPECT_STREQ(recorder.current().channel.data(), "a name much longer than");
}

}  // namespace
}  // namespace trireme
