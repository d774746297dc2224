#include "base/trace.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

SpanRecord span(std::int64_t begin, std::int64_t end, Phase phase = Phase::kForward) {
  return {begin, end, -1, phase};
}

TEST(Trace, spans_come_out_in_order_and_once) {
  Trace trace(4);
  trace.record(span(1, 2));
  trace.record(span(2, 3));
  const auto spans = trace.take_spans();
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].begin_ns, 1);
  EXPECT_EQ(spans[1].begin_ns, 2);
  EXPECT_TRUE(trace.take_spans().empty());
}

TEST(Trace, a_full_ring_loses_the_oldest) {
  Trace trace(4);
  for (int i = 0; i < 11; ++i) trace.record(span(i, i + 1));
  const auto spans = trace.take_spans();
  ASSERT_EQ(spans.size(), 4U);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(spans[static_cast<std::size_t>(i)].begin_ns, 7 + i);

  trace.record(span(11, 12));
  EXPECT_EQ(trace.take_spans().size(), 1U);
}

TEST(Trace, totals_count_also_what_the_ring_lost) {
  Trace trace(2);
  for (int i = 0; i < 10; ++i) trace.record(span(0, 5));
  trace.record(span(0, 7, Phase::kOptimizer));
  EXPECT_EQ(trace.take_total_ns(Phase::kForward), 50);
  EXPECT_EQ(trace.take_total_ns(Phase::kForward), 0);
  EXPECT_EQ(trace.take_total_ns(Phase::kOptimizer), 7);
}

TEST(Trace, a_span_sets_the_phase_and_gives_back_the_outer_one) {
  Trace trace(8);
  EXPECT_EQ(trace.current_phase(), Phase::kStart);
  {
    const Span outer(trace, Phase::kBackwardInput, 3);
    {
      const Span inner(trace, Phase::kCommunication);
      EXPECT_EQ(trace.current_phase(), Phase::kCommunication);
    }
    EXPECT_EQ(trace.current_phase(), Phase::kBackwardInput);
  }
  EXPECT_EQ(trace.current_phase(), Phase::kStart);

  const auto spans = trace.take_spans();
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].phase, Phase::kCommunication);
  EXPECT_EQ(spans[1].detail, 3);
  EXPECT_LE(spans[1].begin_ns, spans[0].begin_ns);
  EXPECT_GE(spans[1].end_ns, spans[0].end_ns);
}

TEST(Trace, every_phase_has_its_own_name) {
  for (int a = 0; a < static_cast<int>(Phase::kCount); ++a) {
    EXPECT_FALSE(name_of(static_cast<Phase>(a)).empty());
    for (int b = 0; b < a; ++b)
      EXPECT_NE(name_of(static_cast<Phase>(a)), name_of(static_cast<Phase>(b)));
  }
  EXPECT_EQ(name_of(Phase::kIdle), "idle");
}

TEST(Trace, keeps_where_it_stands_in_a_word_that_others_see) {
  Trace trace;
  std::atomic<std::uint64_t> word{77};
  trace.keep_standing_in(&word);
  const Span span(trace, Phase::kForward);
  trace.set_action('W', 65535, 2047);

  const Standing seen = unpack_standing(word.load());
  EXPECT_EQ(seen.phase, Phase::kForward);
  EXPECT_EQ(seen.action, 'W');
  EXPECT_EQ(seen.virtual_stage, 65535);
  EXPECT_EQ(seen.micro_batch, 2047);
  EXPECT_EQ(pack(seen), word.load());
  trace.set_action(0, 0, 0);
  EXPECT_EQ(unpack_standing(word.load()).phase, Phase::kForward) << "an action changes no phase";
  trace.keep_standing_in(nullptr);
  EXPECT_EQ(trace.current_phase(), Phase::kForward);
}

}  // namespace
}  // namespace trireme
