#include "telemetry/trace_file.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/json.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

TEST(TraceFile, ranks_are_processes_and_tracks_are_threads) {
  const RankTrace ranks[] = {
      {0, "alpha", 0, {{"compute", {{1'000'000'001, 1'000'002'501, 3, Phase::kForward}}}}},
      {1,
       "beta",
       500,
       {{"compute", {}},
        {"\"copies\"", {{1'000'000'000, 1'000'000'010, -1, Phase::kCommunication}}}}},
  };
  const Json json = parse_json(trace_json(ranks), "trace");
  const Json::Array& events = json.find("traceEvents")->as_array();
  ASSERT_EQ(events.size(), 7U);

  EXPECT_EQ(events[0].find("args")->find("name")->as_string(), "rank 0 (alpha)");
  EXPECT_EQ(events[5].find("name")->as_string(), "thread_name");
  EXPECT_EQ(events[5].find("args")->find("name")->as_string(), "\"copies\"");
  EXPECT_EQ(
      events[2].dump(),
      R"({"ph":"X","name":"forward","pid":0,"tid":0,"ts":0.0,"dur":2.5,"args":{"detail":3}})");
  EXPECT_EQ(events[6].dump(),
            R"({"ph":"X","name":"communication","pid":1,"tid":1,"ts":0.499,"dur":0.01})");
}

TEST(TraceFile, a_run_without_spans_is_still_a_valid_file) {
  const TemporaryDirectory folder;
  write_trace_file(folder / "trace.json", {});
  EXPECT_TRUE(parse_json(read_file(folder / "trace.json"), "trace")
                  .find("traceEvents")
                  ->as_array()
                  .empty());
}

TEST(TraceFile, times_keep_their_nanoseconds_after_weeks) {
  const std::int64_t weeks = 3'000'000'000'000'000;
  const RankTrace ranks[] = {
      {0, "a", 0, {{"t", {{0, 1, -1, Phase::kData}, {weeks + 7, weeks + 8, -1, Phase::kData}}}}}};
  EXPECT_NE(trace_json(ranks).find("\"ts\":3000000000000.007,\"dur\":0.001"), std::string::npos);
}

}  // namespace
}  // namespace trireme
