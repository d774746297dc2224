#include "preflight/report.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace trireme {
namespace {

PreflightReport report_of(std::vector<Finding> checks) {
  PreflightReport report;
  report.ranks = {{0, "a", "CPU, AVX2", "0-3", 4, 1.5e11, 2e10, 0}};
  report.hosts = {{"a", {0}, 1 << 30, 1 << 29}};
  report.checks = std::move(checks);
  return report;
}

TEST(PreflightReport, notes_are_no_faults) {
  EXPECT_TRUE(report_of({{"cores", FindingStatus::kNote, {}, "shared", "", "fewer"}}).ok());
  EXPECT_FALSE(report_of({{"CPU", FindingStatus::kOdd, {1}, "old", "new", "swap"}}).ok());
}

TEST(PreflightReport, its_reason_is_the_first_fault_and_how_many_more) {
  const PreflightReport report =
      report_of({{"hosts", FindingStatus::kOk, {}, "1 rank on 1 host", "", ""},
                 {"CPU", FindingStatus::kOdd, {1}, "rank 1 on b: old", "new", "swap"},
                 {"products", FindingStatus::kSlow, {1}, "rank 1 on b: 3", "median 9", "cool"}});
  EXPECT_EQ(report.reason(), "CPU: rank 1 on b: old (new); 1 more");
}

TEST(PreflightReport, as_json_has_what_the_contract_names) {
  const PreflightReport report =
      report_of({{"CPU", FindingStatus::kOdd, {1, 2}, "old", "new", "swap"}});
  const Json json = parse_json(preflight_json(report).dump(), "it");
  EXPECT_FALSE(json.find("ok")->as_bool());
  const Json& check = json.find("checks")->as_array().front();
  EXPECT_EQ(check.find("name")->as_string(), "CPU");
  EXPECT_EQ(check.find("status")->as_string(), "odd");
  EXPECT_EQ(check.find("ranks")->dump(), "[1,2]");
  EXPECT_EQ(check.find("found")->as_string(), "old");
  EXPECT_EQ(check.find("expected")->as_string(), "new");
  EXPECT_EQ(check.find("advice")->as_string(), "swap");
  const Json& rank = json.find("ranks")->as_array().front();
  EXPECT_EQ(rank.find("flops_per_second")->as_double(), 1.5e11);
  EXPECT_TRUE(rank.find("host_copy_bytes_per_second")->is_null());
  EXPECT_EQ(json.find("hosts")->as_array().front().find("name")->as_string(), "a");
}

TEST(PreflightReport, as_text_says_what_to_do_where_something_is_wrong) {
  const std::string text =
      preflight_text(report_of({{"hosts", FindingStatus::kOk, {}, "fine", "", ""},
                                {"CPU", FindingStatus::kOdd, {1}, "old", "new", "swap it"}}));
  EXPECT_NE(text.find("150 GFLOP/s"), std::string::npos) << text;
  EXPECT_NE(text.find("old (expected: new)"), std::string::npos) << text;
  EXPECT_NE(text.find("CPU: swap it\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("hosts: "), std::string::npos) << text;
}

TEST(PreflightReport, of_many_ranks_shows_the_slowest_of_each_host) {
  PreflightReport report = report_of({});
  report.ranks.clear();
  for (int i = 0; i < 128; ++i)
    report.ranks.push_back({i, i < 64 ? "a" : "b", "CPU", "0", 1, 1e9 * (i == 70 ? 1 : 5), 1e9, 0});
  const std::string text = preflight_text(report);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4) << text;  // with the other header
  EXPECT_NE(text.find("1.00 GFLOP/s"), std::string::npos) << text;
}

TEST(PreflightReport, rates_have_three_digits) {
  EXPECT_EQ(flops_text(9.994e8), "999 MFLOP/s");
  EXPECT_EQ(flops_text(9.996e8), "1.00 GFLOP/s");
  EXPECT_EQ(bandwidth_text(12'345), "12.3 kB/s");
  EXPECT_EQ(bandwidth_text(3), "3.00 B/s");
}

}  // namespace
}  // namespace trireme
