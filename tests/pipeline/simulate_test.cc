#include "pipeline/simulate.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "pipeline/checker.h"
#include "pipeline/schedules/schedules.h"

namespace trireme {
namespace {

constexpr auto kF = ActionKind::kForward, kB = ActionKind::kBackwardInput,
               kW = ActionKind::kBackwardWeight, kBW = ActionKind::kBackward,
               kR = ActionKind::kRecompute;
using Starts = std::vector<std::vector<double>>;

TEST(Simulate, two_stages_by_hand) {
  // F 2, B 3, W 1, transfer 0.5.
  const Simulation s = simulate(make_1f1b(2, 2), {2, 3, 1, 0.5});
  EXPECT_EQ(s.starts, (Starts{{0, 2, 9, 15}, {2.5, 4.5, 8.5, 10.5}}));
  EXPECT_EQ(s.makespan, 19);
  EXPECT_EQ(s.step_span, 19);
  EXPECT_EQ(s.cost, 19);
  EXPECT_DOUBLE_EQ(s.bubble_rate, 7.0 / 19);
  EXPECT_EQ(s.busy, (std::vector<double>{12, 12}));
  EXPECT_EQ(s.peak, (std::vector<double>{2, 1}));
  EXPECT_EQ(s.transfers, (std::vector<std::int64_t>{2, 2}));
}

TEST(Simulate, one_stage_has_no_bubble_not_even_by_rounding) {
  for (int micro_batches = 1; micro_batches < 20; ++micro_batches)
    EXPECT_EQ(simulate(make_1f1b(1, micro_batches), {0.1, 0.2, 0.3}).bubble_rate, 0);
}

TEST(Simulate, ranks_that_compute_at_once_share_processors) {
  ActionTimes times{2, 3, 1};
  times.processors = 1;
  const Simulation s = simulate(make_1f1b(2, 2), times);
  EXPECT_EQ(s.starts, (Starts{{0, 2, 10, 20}, {2, 6, 10, 14}}));
  EXPECT_EQ(s.durations, (Starts{{2, 4, 8, 4}, {4, 4, 4, 6}}));
  EXPECT_EQ(s.makespan, 24);  // the work of both: somebody always computes
  for (const Schedule& schedule : {make_zb_h1(4, 6), make_1f1b(4, 6)}) {
    times = {2, 3, 1, 0.5};
    const double alone = simulate(schedule, times).makespan;
    times.processors = 4;
    EXPECT_DOUBLE_EQ(simulate(schedule, times).makespan, alone);
    times.processors = 2;
    EXPECT_GT(simulate(schedule, times).makespan, alone);
    EXPECT_LT(simulate(schedule, times).makespan, 2 * alone);
    EXPECT_GE(simulate(schedule, times).makespan, 4 * 6 * (2 + 3 + 1) / 2.0);
  }
}

TEST(Simulate, ranks_of_a_group_share_its_processors_alone) {
  ActionTimes times{2, 3, 1};
  times.processors = 2;
  times.processor_groups = 2;
  // One micro-batch: a stage computes at a time, on a processor of its own.
  EXPECT_EQ(simulate(make_1f1b(4, 1), times).makespan, 4 * (2 + 3 + 1));
  // Two of two stages have one each; of four, 0 and 2 share one, and 1 and 3.
  EXPECT_EQ(simulate(make_1f1b(2, 2), times).makespan,
            simulate(make_1f1b(2, 2), {2, 3, 1}).makespan);
  const double bound = simulate(make_1f1b(4, 6), times).makespan;
  times.processor_groups = 1;
  EXPECT_GT(bound, simulate(make_1f1b(4, 6), times).makespan);
  EXPECT_LT(bound, 2 * simulate(make_1f1b(4, 6), {2, 3, 1}).makespan);
}

TEST(Simulate, what_has_nothing_to_train_waits_for_no_gradient) {
  Schedule schedule = make_1f1b(2, 2);
  schedule.first_trained = 1;
  const Simulation s = simulate(schedule, {2, 3, 1, 0.5, {{2, 0, 0}, {2, 3, 1}}});
  EXPECT_EQ(s.starts, (Starts{{0, 2, 4, 4}, {2.5, 4.5, 8.5, 10.5}}));
  EXPECT_EQ(s.makespan, 14.5);
  EXPECT_EQ(s.transfers, (std::vector<std::int64_t>{2, 0}));
}

TEST(Simulate, cost_is_the_longest_rank_and_makespan_all_of_them) {
  const Simulation s = simulate(make_zb_h2(4, 16), {});
  EXPECT_EQ(s.cost, 48);
  EXPECT_EQ(s.makespan, 51);
  EXPECT_EQ(s.bubble_rate, 0);
}

/// So many steps one after the other, each rank's next behind its last.
Schedule repeated(const Schedule& schedule, int steps) {
  const std::int32_t micro_batches = shape_of(schedule).micro_batches;
  Schedule all{{}, schedule.placement};
  for (const std::vector<Action>& actions : schedule.ranks) {
    std::vector<Action>& rank = all.ranks.emplace_back();
    for (int step = 0; step < steps; ++step) {
      for (Action action : actions) {
        action.micro_batch += step * micro_batches;
        if (action.group != 0) action.group += step * 1000000;
        rank.push_back(action);
      }
    }
  }
  return all;
}

TEST(Simulate, steps_that_follow_without_waiting_take_the_cost_each) {
  for (const std::string& name : schedule_names()) {
    for (const ActionTimes& times : {ActionTimes{1, 1, 1, 0}, ActionTimes{3, 4, 2, 0.5}}) {
      ScheduleRequest request;
      request.kind = *schedule_kind(name);
      request.stages = 4;
      request.micro_batches = 16;
      request.times = times;
      const Schedule schedule = make_schedule(request);
      const Simulation one = simulate(schedule, times);
      constexpr int kSteps = 12;
      const double few = simulate(repeated(schedule, kSteps), times).makespan;
      const double more = simulate(repeated(schedule, 2 * kSteps), times).makespan;
      EXPECT_NEAR((more - few) / kSteps, one.cost, 1e-9) << name;
      EXPECT_LE(one.cost, one.step_span) << name;
    }
  }
}

TEST(Simulate, a_transfer_within_a_rank_takes_no_time) {
  ScheduleRequest request;
  request.kind = ScheduleKind::kZbV;
  request.stages = 1;
  request.micro_batches = 3;
  request.times.transfer = 100;
  const Simulation s = simulate(make_schedule(request), request.times);
  EXPECT_EQ(s.bubble_rate, 0);
  EXPECT_EQ(s.transfers, std::vector<std::int64_t>{0});
}

TEST(Simulate, a_group_starts_with_the_last_input_and_gives_all_at_its_end) {
  Schedule schedule;
  schedule.ranks = {{{kF, 0, 0}, {kF, 0, 1}, {kBW, 0, 0}, {kBW, 0, 1}},
                    {{kF, 1, 0}, {kF, 1, 1, 1}, {kBW, 1, 0, 1}, {kBW, 1, 1}}};
  ASSERT_FALSE(check_schedule(schedule));
  const Simulation s = simulate(schedule, {});
  EXPECT_EQ(s.starts, (Starts{{0, 1, 5, 7}, {1, 2, 2, 5}}));
  // Both are held while the group runs.
  EXPECT_EQ(s.peak, (std::vector<double>{2, 2}));
}

TEST(Simulate, what_r_makes_is_held_until_b_in_memory_of_its_own) {
  Schedule schedule;
  schedule.ranks = {{{kF, 0, 0}, {kF, 0, 1}, {kR, 0, 0}, {kBW, 0, 0}, {kR, 0, 1}, {kBW, 0, 1}}};
  EXPECT_EQ(simulate(schedule, {}).peak, std::vector<double>{2});
  EXPECT_EQ(simulate(schedule, {}, 1, 10).peak, std::vector<double>{12});
  std::swap(schedule.ranks[0][3], schedule.ranks[0][4]);
  EXPECT_EQ(simulate(schedule, {}, 1, 10).peak, std::vector<double>{22});
  // 3 whole and one recomputed; later one whole and what two leave for W.
  schedule.ranks = {{{kF, 0, 0},
                     {kF, 0, 1},
                     {kF, 0, 2},
                     {kR, 0, 0},
                     {kB, 0, 0},
                     {kB, 0, 1},
                     {kW, 0, 0},
                     {kW, 0, 1},
                     {kBW, 0, 2}}};
  EXPECT_EQ(simulate(schedule, {}, 1, 10).peak, std::vector<double>{13});
  EXPECT_EQ(simulate(schedule, {}, 1.5, 10).peak, std::vector<double>{14});
}

TEST(Simulate, r_is_more_work_or_takes_over_what_b_would_do) {
  Schedule schedule;
  schedule.ranks = {{{kF, 0, 0}, {kR, 0, 0}, {kBW, 0, 0}, {kF, 0, 1}, {kBW, 0, 1}}};
  const Simulation more = simulate(schedule, {2, 4, 1});
  EXPECT_EQ(more.starts, (Starts{{0, 2, 4, 9, 11}}));
  EXPECT_EQ(more.durations, (Starts{{2, 2, 5, 2, 5}}));
  EXPECT_EQ(more.bubble_rate, 2.0 / 16);
  ActionTimes times{2, 4, 1};
  times.recompute = 1.5;
  const Simulation over = simulate(schedule, times);
  EXPECT_EQ(over.durations, (Starts{{2, 1.5, 3.5, 2, 5}}));
  EXPECT_EQ(over.busy, std::vector<double>{14});
  EXPECT_EQ(over.bubble_rate, 0);
  // Before a gradient that comes late it fills the time.
  Schedule two = make_1f1b(2, 1);
  times = {2, 4, 1, 3};
  times.recompute = 2;
  EXPECT_EQ(simulate(two, times).makespan, 20);
  two.ranks[0].insert(two.ranks[0].begin() + 1, {kR, 0, 0});
  EXPECT_EQ(simulate(two, times).makespan, 18);
  times.stages = {{2, 4, 1, 1.0}, {2, 4, 1, 2.0}};
  EXPECT_EQ(simulate(two, times).makespan, 19);
}

TEST(Simulate, activations_are_held_in_part_from_b_to_w) {
  Schedule schedule;
  schedule.ranks = {{{kF, 0, 0}, {kB, 0, 0}, {kF, 0, 1}, {kB, 0, 1}, {kW, 0, 0}, {kW, 0, 1}}};
  EXPECT_EQ(simulate(schedule, {}, 1).peak, std::vector<double>{2});
  EXPECT_EQ(simulate(schedule, {}, 0.25).peak, std::vector<double>{1.25});
}

TEST(Simulate, stages_may_take_times_of_their_own) {
  ActionTimes times{1.5, 1, 1};
  times.stages = {{1, 1, 1}, {2, 1, 1}};
  const Simulation s = simulate(make_1f1b(2, 2), times);
  EXPECT_EQ(s.starts, (Starts{{0, 1, 5, 9}, {1, 3, 5, 7}}));
  EXPECT_EQ(s.busy, (std::vector<double>{6, 8}));
  EXPECT_EQ(s.bubble_rate, (11.0 - 7) / 11);
}

TEST(Simulate, a_plan_that_was_not_checked_is_a_defect_of_the_caller) {
  Schedule schedule;
  schedule.ranks = {{{kBW, 0, 0}, {kF, 0, 0}}};
  EXPECT_THROW(simulate(schedule, {}), InternalError);
}

TEST(Simulate, checks_and_times_large_plans) {  // how fast: schedule_bench
  const Schedule schedule = make_interleaved(128, 4, 2048, 128);
  EXPECT_FALSE(check_schedule(schedule));
  EXPECT_EQ(simulate(schedule, {}).cost, 3 * 4 * 2048 + 3 * 127);
}

}  // namespace
}  // namespace trireme
