#include "base/op_trace.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace trireme {
namespace {

TEST(OpTrace, without_a_trace_a_span_does_nothing) {
  const OpSpan span(nullptr, "norm",
                    {1, 2});  // must not touch the null pointer, here or at the end
}

TEST(OpTrace, calls_of_an_op_in_a_phase_are_summed) {
  Trace phases(8);
  OpTrace trace(phases);
  const std::string same_text = "norm";
  trace.record("norm", {10, 100}, 5);
  trace.record(same_text.c_str(), {1, 2}, 3);
  ASSERT_EQ(trace.totals().size(), 1U);
  const OpTotal& total = trace.totals()[0];
  EXPECT_STREQ(total.op, "norm");
  EXPECT_EQ(total.calls, 2);
  EXPECT_EQ(total.ns, 8);
  EXPECT_EQ(total.flops, 11);
  EXPECT_EQ(total.bytes, 102);
}

TEST(OpTrace, phases_ops_and_types_have_rows_of_their_own) {
  Trace phases(8);
  OpTrace trace(phases);
  {
    const Span phase(phases, Phase::kForward);
    trace.record("norm", {}, 1);
    trace.record("gemm", {}, 2);
    trace.record("gemm", {0, 0, DType::kBF16}, 4);
  }
  const Span phase(phases, Phase::kOptimizer);
  trace.record("norm", {}, 8);

  ASSERT_EQ(trace.totals().size(), 4U);
  EXPECT_EQ(trace.totals()[0].phase, Phase::kForward);
  EXPECT_STREQ(trace.totals()[1].op, "gemm");
  EXPECT_EQ(trace.totals()[2].type, DType::kBF16);
  EXPECT_EQ(trace.totals()[3].phase, Phase::kOptimizer);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(trace.totals()[i].ns, 1 << i);
}

void spend(std::int64_t ns) {
  for (const std::int64_t begin = steady_now_ns(); steady_now_ns() - begin < ns;) {
  }
}

TEST(OpTrace, the_time_of_an_inner_op_is_not_the_outer_ones_too) {
  constexpr std::int64_t kInner = 2'000'000;
  Trace phases(8);
  OpTrace trace(phases);
  const std::int64_t begin = steady_now_ns();
  {
    const OpSpan outer(&trace, "outer", {});
    for (int i = 0; i < 2; ++i) {
      const OpSpan inner(&trace, "inner", {});
      const OpSpan innermost(&trace, "innermost", {});
      spend(kInner);
    }
  }
  const std::int64_t all = steady_now_ns() - begin;

  ASSERT_EQ(trace.totals().size(), 3U);
  std::int64_t sum = 0;
  for (const OpTotal& total : trace.totals()) sum += total.ns;
  EXPECT_LE(sum, all);
  EXPECT_STREQ(trace.totals()[0].op, "innermost");
  EXPECT_GE(trace.totals()[0].ns, 2 * kInner);
  // Each is open all the time that the innermost is, so that counting it twice would show.
  EXPECT_LE(trace.totals()[1].ns, all - 2 * kInner);
  EXPECT_LE(trace.totals()[2].ns, all - 2 * kInner);
}

TEST(OpTrace, what_the_table_cannot_hold_is_summed_in_its_last_row) {
  std::vector<std::string> names;
  for (int i = 0; i < 100; ++i) names.push_back("op" + std::to_string(i));
  Trace phases(8);
  OpTrace trace(phases);
  for (const std::string& name : names) trace.record(name.c_str(), {}, 1);

  const auto totals = trace.totals();
  ASSERT_EQ(totals.size(), 64U);
  EXPECT_STREQ(totals.front().op, "op0");
  EXPECT_STREQ(totals.back().op, "others");
  EXPECT_EQ(totals.back().calls, 37);
}

TEST(OpTrace, cleared_it_begins_anew) {
  Trace phases(8);
  OpTrace trace(phases);
  trace.record("norm", {}, 5);
  trace.clear();
  EXPECT_TRUE(trace.totals().empty());
  trace.record("norm", {}, 2);
  ASSERT_EQ(trace.totals().size(), 1U);
  EXPECT_EQ(trace.totals()[0].ns, 2);
}

/// A device that takes 7 ns for each op that has none inside, 20 for the others.
class Device : public OpClock {
 public:
  void begin() override { inner_.push_back(false); }
  std::int64_t end() override {
    const bool outer = inner_.back();
    inner_.pop_back();
    if (!inner_.empty()) inner_.back() = true;
    return outer ? 20 : 7;
  }

 private:
  std::vector<bool> inner_;
};

TEST(OpTrace, a_device_times_its_ops_and_what_the_caller_spends_beside_it_is_told_apart) {
  Trace phases(8);
  Device device;
  OpTrace trace(phases, &device);
  const std::int64_t begin = steady_now_ns();
  {
    const Span phase(phases, Phase::kForward);
    const OpSpan outer(&trace, "outer", {});
    const OpSpan inner(&trace, "inner", {});
    spend(1'000'000);
  }
  const std::int64_t passed = steady_now_ns() - begin;
  ASSERT_EQ(trace.totals().size(), 2U);
  EXPECT_EQ(trace.totals()[0].ns, 7) << "inner";
  EXPECT_EQ(trace.totals()[1].ns, 13) << "outer";
  EXPECT_GE(trace.beyond_ns(Phase::kForward), 1'000'000 - 20);
  EXPECT_LE(trace.beyond_ns(Phase::kForward), passed - 20);
  EXPECT_EQ(trace.beyond_ns(Phase::kOptimizer), 0);
  trace.clear();
  EXPECT_EQ(trace.beyond_ns(Phase::kForward), 0);
}

}  // namespace
}  // namespace trireme
