#include "plan/step_cost.h"

#include <gtest/gtest.h>

#include <array>

#include "base/error.h"

namespace trireme {
namespace {

constexpr std::int64_t kMs = 1'000'000;

/// 100 GFLOP/s (bf16 200), 10 GB/s from memory, 40 in the cache.
MachineRates round_rates() {
  MachineRates rates;
  rates.sgemm_flops_per_second = 100e9;
  rates.bf16_flops_per_second = 200e9;
  rates.copies = {{1 << 16, 40e9}, {1 << 20, 40e9}, {1 << 28, 10e9}};
  return rates;
}

std::int64_t& ns_of(RankTimes& times, StepPhase phase) {
  return times.phase_ns[static_cast<std::size_t>(phase)];
}
const PhaseCost& phase_of(const StepCost& cost, StepPhase phase) {
  return cost.phases[static_cast<std::size_t>(phase)];
}
const PartCost& part_of(const StepCost& cost, const std::string& name) {
  for (const PartCost& part : cost.parts) {
    if (part.part == name) return part;
  }
  throw InternalError("no part {}", name);
}

/// Two steps of 100 ms: a product, attention, a norm, AdamW.
RankTimes two_steps() {
  RankTimes times;
  ns_of(times, StepPhase::kForward) = 80 * kMs;
  ns_of(times, StepPhase::kBackward) = 90 * kMs;
  ns_of(times, StepPhase::kOptimizer) = 20 * kMs;
  ns_of(times, StepPhase::kCommunication) = 4 * kMs;
  times.ops = {
      {StepPhase::kForward, "norm_forward", DType::kF32, 4, 10 * kMs, 0, 4 << 20},
      {StepPhase::kForward, "linear_forward", DType::kF32, 8, 50 * kMs, 4'000'000'000, 1000},
      {StepPhase::kForward, "attention_forward", DType::kF32, 2, 20 * kMs, 400'000'000, 1000},
      {StepPhase::kBackward, "linear_weight_gradient", DType::kBF16, 2, 80 * kMs, 8'000'000'000, 8},
      {StepPhase::kOptimizer, "adamw_update", DType::kF32, 2, 20 * kMs, 0, 2 << 28},
  };
  return times;
}

TEST(StepCost, times_are_of_one_step_and_ordered_by_phase_and_time) {
  const std::vector<RankTimes> ranks = {two_steps()};
  const StepCost cost = cost_of_step(ranks, 2, 0.1, round_rates());
  ASSERT_EQ(cost.ops.size(), 5U);
  EXPECT_EQ(cost.ops[0].op, "linear_forward");
  EXPECT_EQ(cost.ops[1].op, "attention_forward");
  EXPECT_EQ(cost.ops[2].op, "norm_forward");
  EXPECT_EQ(cost.ops[3].op, "linear_weight_gradient");
  EXPECT_EQ(cost.ops[4].op, "adamw_update");
  EXPECT_EQ(cost.ops[0].calls, 4);
  EXPECT_DOUBLE_EQ(cost.ops[0].seconds.mean, 0.025);
  EXPECT_DOUBLE_EQ(cost.ops[0].flops, 2e9);
  EXPECT_DOUBLE_EQ(phase_of(cost, StepPhase::kForward).seconds.mean, 0.040);
  EXPECT_NEAR(phase_of(cost, StepPhase::kForward).not_in_ops, 0, 1e-12);
  EXPECT_NEAR(phase_of(cost, StepPhase::kBackward).not_in_ops, 0.005, 1e-12);
}

TEST(StepCost, an_op_is_bound_by_the_slower_of_products_and_copies) {
  const std::vector<RankTimes> ranks = {two_steps()};
  const StepCost cost = cost_of_step(ranks, 2, 0.1, round_rates());
  EXPECT_EQ(cost.ops[0].bound, Bound::kCompute);
  EXPECT_DOUBLE_EQ(cost.ops[0].bound_seconds, 0.020);  // 2 GFLOP at 100 GFLOP/s
  EXPECT_EQ(cost.ops[3].bound, Bound::kCompute);
  EXPECT_DOUBLE_EQ(cost.ops[3].bound_seconds, 0.020);  // 4 GFLOP at bf16's 200
  EXPECT_EQ(cost.ops[2].bound, Bound::kMemory);
  EXPECT_DOUBLE_EQ(cost.ops[2].bound_seconds, (2 << 20) / 40e9);  // 1 MiB a call: in the cache
  EXPECT_EQ(cost.ops[4].bound, Bound::kMemory);
  EXPECT_DOUBLE_EQ(cost.ops[4].bound_seconds, (1 << 28) / 10e9);  // 256 MiB a call: memory
}

TEST(StepCost, a_product_that_hardly_computes_is_bound_by_memory) {
  RankTimes times;
  times.ops = {{StepPhase::kForward, "linear_forward", DType::kF32, 1, 1, 1000, 1 << 28}};
  const std::vector<RankTimes> ranks = {times};
  EXPECT_EQ(cost_of_step(ranks, 1, 0.1, round_rates()).ops[0].bound, Bound::kMemory);
}

TEST(StepCost, phases_and_parts_add_up_to_the_step) {
  const std::vector<RankTimes> ranks = {two_steps()};
  const StepCost cost = cost_of_step(ranks, 2, 0.1, round_rates());
  double phases = 0, parts = 0, bounds = 0;
  for (const PhaseCost& phase : cost.phases) phases += phase.seconds.mean;
  for (const PartCost& part : cost.parts) parts += part.seconds;
  for (const OpCost& op : cost.ops) bounds += op.bound_seconds;
  EXPECT_NEAR(phases, 0.1, 1e-12);
  EXPECT_NEAR(parts, 0.1, 1e-12);
  EXPECT_DOUBLE_EQ(cost.bound_seconds, bounds);
  EXPECT_NEAR(phase_of(cost, StepPhase::kOther).seconds.mean, 0.003, 1e-12);
  EXPECT_NEAR(part_of(cost, "products").seconds, 0.065, 1e-12);
  EXPECT_NEAR(part_of(cost, "attention").seconds, 0.010, 1e-12);
  EXPECT_NEAR(part_of(cost, "memory-bound ops").seconds, 0.015, 1e-12);
  EXPECT_NEAR(part_of(cost, "communication").seconds, 0.002, 1e-12);
  EXPECT_NEAR(part_of(cost, "not in ops").seconds, 0.008, 1e-12);
  EXPECT_EQ(cost.parts.front().part, "products");
}

TEST(StepCost, of_several_ranks_work_is_summed_and_time_is_the_mean) {
  std::vector<RankTimes> ranks = {two_steps(), two_steps(), two_steps()};
  ranks[1].ops[1].ns = 62 * kMs;
  ns_of(ranks[2], StepPhase::kForward) = 92 * kMs;
  MachineRates rates = round_rates();
  rates.add(round_rates());
  rates.add(round_rates());
  const StepCost cost = cost_of_step(ranks, 2, 0.1, rates);
  EXPECT_DOUBLE_EQ(cost.ops[0].flops, 6e9);
  EXPECT_NEAR(cost.ops[0].seconds.mean, 0.027, 1e-12);
  EXPECT_DOUBLE_EQ(cost.ops[0].seconds.minimum, 0.025);
  EXPECT_DOUBLE_EQ(cost.ops[0].seconds.maximum, 0.031);
  EXPECT_DOUBLE_EQ(cost.ops[0].bound_seconds, 0.020);  // each does a third at its own rate
  EXPECT_DOUBLE_EQ(cost.ops[2].bound_seconds, (2 << 20) / 40e9);  // still 1 MiB a call of a rank
  EXPECT_NEAR(phase_of(cost, StepPhase::kForward).seconds.mean, 0.042, 1e-12);
  EXPECT_DOUBLE_EQ(phase_of(cost, StepPhase::kForward).seconds.maximum, 0.046);
}

TEST(StepCost, an_op_that_a_rank_did_not_call_took_it_no_time) {
  std::vector<RankTimes> ranks = {two_steps(), two_steps()};
  ranks[1].ops.pop_back();
  const StepCost cost = cost_of_step(ranks, 2, 0.1, round_rates());
  EXPECT_DOUBLE_EQ(cost.ops[4].seconds.minimum, 0);
  EXPECT_DOUBLE_EQ(cost.ops[4].seconds.mean, 0.005);
}

TEST(StepCost, without_rates_nothing_is_bound) {
  const std::vector<RankTimes> ranks = {two_steps()};
  const StepCost cost = cost_of_step(ranks, 2, 0.1, {});
  EXPECT_EQ(cost.bound_seconds, 0);
  for (const OpCost& op : cost.ops) EXPECT_EQ(op.bound_seconds, 0) << op.op;
}

/// Takes no time at all.
class Instant : public OpClock {
 public:
  void begin() override {}
  std::int64_t end() override { return 0; }
};

TEST(RankTimes, what_tracing_a_device_adds_to_a_phase_is_taken_off) {
  Trace trace(8);
  Instant device;
  OpTrace ops(trace, &device);
  std::array<std::int64_t, static_cast<std::size_t>(Phase::kCount)> phase_ns = {};
  const std::int64_t begin = steady_now_ns();
  {
    const Span phase(trace, Phase::kForward);
    const OpSpan span(&ops, "norm", {});
  }
  const std::int64_t passed = steady_now_ns() - begin;
  phase_ns[static_cast<std::size_t>(Phase::kForward)] = passed;
  RankTimes times = rank_times(phase_ns, ops);
  EXPECT_EQ(ns_of(times, StepPhase::kForward), passed - ops.beyond_ns(Phase::kForward));
  EXPECT_LT(ns_of(times, StepPhase::kForward), passed);
}

TEST(RankTimes, both_halves_of_backward_are_one_phase) {
  Trace trace(8);
  OpTrace ops(trace);
  for (const Phase phase : {Phase::kBackwardInput, Phase::kBackwardWeight}) {
    trace.exchange_phase(phase);
    ops.record("norm_backward", {1, 2}, 3);
  }
  std::array<std::int64_t, static_cast<std::size_t>(Phase::kCount)> phase_ns = {};
  for (const Phase phase : {Phase::kBackwardInput, Phase::kBackwardWeight})
    phase_ns[static_cast<std::size_t>(phase)] = 5;
  RankTimes times = rank_times(phase_ns, ops);
  EXPECT_EQ(ns_of(times, StepPhase::kBackward), 10);
  ASSERT_EQ(times.ops.size(), 1U);
  EXPECT_EQ(times.ops[0].phase, StepPhase::kBackward);
  EXPECT_EQ(times.ops[0].calls, 2);
  EXPECT_EQ(times.ops[0].ns, 6);
  EXPECT_EQ(times.ops[0].flops, 2);
  EXPECT_EQ(times.ops[0].bytes, 4);
}

TEST(RankTimes, every_phase_has_its_own_name) {
  for (int a = 0; a < static_cast<int>(StepPhase::kCount); ++a) {
    for (int b = 0; b < a; ++b) {
      EXPECT_NE(name_of(static_cast<StepPhase>(a)), name_of(static_cast<StepPhase>(b)));
    }
  }
  EXPECT_EQ(name_of(StepPhase::kOther), "other");
}

TEST(RankTimes, arrive_at_rank_0_as_they_were) {
  const RankTimes sent = two_steps();
  const MachineRates sent_rates = round_rates();
  RankTimes times;
  MachineRates rates;
  parse_rank(text_of(sent, sent_rates), times, rates);
  EXPECT_EQ(times.phase_ns, sent.phase_ns);
  ASSERT_EQ(times.ops.size(), sent.ops.size());
  for (std::size_t i = 0; i < times.ops.size(); ++i) {
    EXPECT_EQ(times.ops[i].phase, sent.ops[i].phase);
    EXPECT_EQ(times.ops[i].op, sent.ops[i].op);
    EXPECT_EQ(times.ops[i].type, sent.ops[i].type);
    EXPECT_EQ(times.ops[i].calls, sent.ops[i].calls);
    EXPECT_EQ(times.ops[i].ns, sent.ops[i].ns);
    EXPECT_EQ(times.ops[i].flops, sent.ops[i].flops);
    EXPECT_EQ(times.ops[i].bytes, sent.ops[i].bytes);
  }
  EXPECT_EQ(rates.sgemm_flops_per_second, sent_rates.sgemm_flops_per_second);
  EXPECT_EQ(rates.bf16_flops_per_second, sent_rates.bf16_flops_per_second);
  ASSERT_EQ(rates.copies.size(), 3U);
  EXPECT_EQ(rates.copies[2].bytes, 1 << 28);
  EXPECT_EQ(rates.copies[2].bytes_per_second, 10e9);
}

}  // namespace
}  // namespace trireme
