#include "pipeline/checker.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "pipeline/schedules/schedules.h"

namespace trireme {
namespace {

constexpr auto kF = ActionKind::kForward, kB = ActionKind::kBackwardInput,
               kW = ActionKind::kBackwardWeight, kBW = ActionKind::kBackward,
               kR = ActionKind::kRecompute;

const std::string kComplete = "F and BW, or F, B and W, of every micro-batch from 0 on every stage";

const std::string kOrder = ". Legal: F, then R where there is one, then B and W, or BW";

std::string fault_of(const Schedule& schedule, const CheckLimits& limits = {}) {
  const std::optional<ScheduleFault> fault = check_schedule(schedule, limits);
  return fault ? fault->text(schedule) : "valid";
}

Schedule plan_of(std::vector<std::vector<Action>> ranks) {
  Schedule schedule;
  schedule.ranks = std::move(ranks);
  return schedule;
}

TEST(Checker, takes_what_is_right) {
  EXPECT_EQ(fault_of(plan_of({{{kF, 0, 0}, {kBW, 0, 0}}})), "valid");
  EXPECT_EQ(fault_of(plan_of({{{kF, 0, 0}, {kR, 0, 0}, {kB, 0, 0}, {kW, 0, 0}}})), "valid");
  EXPECT_EQ(fault_of(make_1f1b(3, 5)), "valid");
}

TEST(Checker, refuses_numbers_that_fit_nothing) {
  EXPECT_EQ(fault_of({}), "rule placement: there are no ranks. Legal: 1 or more");
  EXPECT_EQ(fault_of(plan_of({{}})), "rule complete: there are no actions. Legal: " + kComplete);
  EXPECT_EQ(fault_of(plan_of({{{kF, -1, 0}, {kBW, 0, 0}}})),
            "rank 0, position 0 (F-1.0), rule place: a number below 0. Legal: 0 or more");
  EXPECT_EQ(fault_of(plan_of({{{kF, 0, 1'000'000'000}, {kBW, 0, 0}}})),
            "rank 0, position 0 (F0.1000000000), rule complete: the schedule's 2 actions are too "
            "few for 1 "
            "virtual stages and 1000000001 micro-batches. Legal: " +
                kComplete);
}

TEST(Checker, refuses_placements_that_are_uneven_and_actions_of_other_ranks) {
  Schedule schedule = make_1f1b(2, 2);
  schedule.placement = {0, 0};
  EXPECT_EQ(fault_of(schedule),
            "rank 1, rule placement: it holds 0 virtual stages and rank 0 2. Legal: "
            "equal numbers, at least 1");
  schedule.placement = {1, 0};
  EXPECT_EQ(fault_of(schedule),
            "rank 0, position 0 (F0.0), rule place: virtual stage 0 is on rank 1. Legal: there, or "
            "another placement");
  schedule.placement = {0, 2};
  EXPECT_EQ(fault_of(schedule), "rule placement: it names rank 2. Legal: 0 to 1");
}

TEST(Checker, refuses_what_is_missing_or_twice) {
  EXPECT_EQ(
      fault_of(plan_of({{{kF, 0, 0}, {kF, 0, 0}, {kBW, 0, 0}}})),
      "rank 0, position 1 (F0.0), rule complete: it stands at position 0 already. Legal: once");
  EXPECT_EQ(fault_of(plan_of({{{kF, 0, 0}, {kB, 0, 0}}})),
            "rank 0, rule complete: W0.0 is missing. Legal: " + kComplete);
  EXPECT_EQ(fault_of(plan_of({{{kF, 0, 0}, {kR, 0, 0}}})),
            "rank 0, rule complete: B and W, or BW, of 0.0 is missing. Legal: " + kComplete);
  EXPECT_EQ(fault_of(plan_of({{{kB, 0, 0}, {kW, 0, 0}}})),
            "rank 0, rule complete: F0.0 is missing. Legal: " + kComplete);
  EXPECT_EQ(
      fault_of(plan_of({{{kF, 0, 0}, {kBW, 0, 0}, {kW, 0, 0}}})),
      "rank 0, position 2 (W0.0), rule complete: BW0.0 at position 1 does this already. Legal: " +
          kComplete);
}

TEST(Checker, refuses_a_wrong_order_on_a_rank) {
  EXPECT_EQ(fault_of(plan_of({{{kBW, 0, 0}, {kF, 0, 0}}})),
            "rank 0, position 0 (BW0.0), rule order: F0.0 must stand before it, and stands at "
            "position 1" +
                kOrder);
  EXPECT_EQ(fault_of(plan_of({{{kF, 0, 0}, {kW, 0, 0}, {kB, 0, 0}}})),
            "rank 0, position 1 (W0.0), rule order: B0.0 must stand before it, and stands at "
            "position 2" +
                kOrder);
  EXPECT_EQ(fault_of(plan_of({{{kF, 0, 0}, {kBW, 0, 0}, {kR, 0, 0}}})),
            "rank 0, position 1 (BW0.0), rule order: R0.0 must stand before it, and stands at "
            "position 2" +
                kOrder);
}

TEST(Checker, refuses_groups_that_cannot_run_together) {
  const std::vector<Action> two = {{kF, 0, 0}, {kF, 0, 1}, {kBW, 0, 0}, {kBW, 0, 1}};
  const auto marked = [&](std::vector<std::int32_t> marks) {
    std::vector<Action> actions = two;
    for (std::size_t i = 0; i < 4; ++i) actions[i].group = marks[i];
    return fault_of(plan_of({actions}));
  };
  EXPECT_EQ(marked({0, 5, 5, 0}), "valid");
  EXPECT_EQ(marked({5, 5, 0, 0}),
            "rank 0, position 0 (F0.0), rule group: 2 actions with mark 5. Legal: one F and one B "
            "or BW");
  EXPECT_EQ(marked({0, 0, 0, 5}),
            "rank 0, position 3 (BW0.1), rule group: 1 actions with mark 5. Legal: one F and one B "
            "or BW");
  EXPECT_EQ(marked({5, 0, 5, 0}),
            "rank 0, position 0 (F0.0), rule group: 1 actions with mark 5. Legal: one F and one B "
            "or BW");
  EXPECT_EQ(fault_of(plan_of({{{kF, 0, 0},
                               {kF, 0, 1, 5},
                               {kBW, 0, 0, 5},
                               {kBW, 0, 1},
                               {kF, 0, 2, 6},
                               {kBW, 0, 2, 6}}})),
            "rank 0, position 4 (F0.2), rule group: both are of one stage and micro-batch, so one "
            "needs the other. Legal: of two stages or micro-batches");
}

TEST(Checker, descending_micro_batches_need_a_plan_that_says_so) {
  Schedule schedule = plan_of({{{kF, 0, 0}, {kF, 0, 1}, {kBW, 0, 1}, {kBW, 0, 0}}});
  EXPECT_EQ(fault_of(schedule),
            "rank 0, position 3 (BW0.0), rule reproducible: micro-batch 1 of this stage came "
            "before, so sums differ from other schedules. Legal: ascending micro-batches, or "
            "\"reproducible\": false in the schedule");
  schedule.reproducible = false;
  EXPECT_EQ(fault_of(schedule), "valid");
}

TEST(Checker, names_the_ranks_that_wait_for_each_other) {
  // Rank 0 wants the gradient of micro-batch 0 before it has sent micro-batch 1; rank 1 begins
  // with 1.
  Schedule schedule = plan_of({{{kF, 0, 0}, {kBW, 0, 0}, {kF, 0, 1}, {kBW, 0, 1}},
                               {{kF, 1, 1}, {kF, 1, 0}, {kBW, 1, 0}, {kBW, 1, 1}}});
  schedule.reproducible = false;
  const std::optional<ScheduleFault> fault = check_schedule(schedule);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->rule, "progress");
  EXPECT_EQ(
      fault->text(schedule),
      "rank 0, position 1 (BW0.0), rule progress: it needs the input gradient of virtual "
      "stage 1, micro-batch 0, which stands behind F1.1 (rank 1, position 0), and that waits, "
      "over other ranks or at once, for this action. Legal: an order in which one of the ranks can "
      "always go on");
}

TEST(Checker, says_the_least_memory_that_a_rank_needs) {
  EXPECT_EQ(fault_of(make_1f1b(4, 8), {4.0, 1}), "valid");
  EXPECT_EQ(fault_of(make_1f1b(4, 8), {3.0, 1}),
            "rank 0, rule memory: it holds 4 full-stage activations and the limit is 3. Legal: a "
            "limit of at least 4 for this rank");
  // W kept at half: rank 3 holds one whole activation and three halves.
  EXPECT_EQ(fault_of(make_zb_h1(4, 8), {4.0, 0.5}), "valid");
  EXPECT_THROW(require_valid(make_gpipe(2, 8), "here", {7.5, 1}), ConfigError);
}

}  // namespace
}  // namespace trireme
