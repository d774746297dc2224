#include "pipeline/slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "pipeline/schedules/schedules.h"
#include "pipeline/simulate.h"

namespace trireme {
namespace {

using enum ActionKind;

TEST(Slots, numbers_of_a_kind_that_nothing_holds_are_none) {
  const Schedule schedule = make_1f1b(4, 8);
  for (const Holding holding : {Holding::kGradients, Holding::kRecomputed}) {
    const SlotTable table = slots_of(schedule, holding);
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(table.count(rank), 0);
    EXPECT_EQ(table.of(2, 7), -1);
  }
}

TEST(Slots, those_of_1f1b_go_round) {
  const SlotTable table = slots_of(make_1f1b(4, 8), Holding::kActivations);
  EXPECT_EQ(table.of_stage(0), (std::vector<std::int32_t>{0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(table.of_stage(2), (std::vector<std::int32_t>{0, 1, 0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(table.of_stage(3), std::vector<std::int32_t>(8, 0));
}

TEST(Slots, a_micro_batch_waits_for_w_from_b_on_and_not_in_bw) {
  Schedule schedule;
  // Two wait, and their numbers are three apart; 1 does not wait.
  schedule.ranks = {{{kBackwardInput, 0, 0},
                     {kBackwardInput, 0, 3},
                     {kBackward, 0, 1},
                     {kBackwardWeight, 0, 0},
                     {kBackwardInput, 0, 2},
                     {kBackwardWeight, 0, 3},
                     {kBackwardWeight, 0, 2}}};
  EXPECT_EQ(slots_of(schedule, Holding::kGradients).of_stage(0),
            (std::vector<std::int32_t>{0, -1, 0, 1}));
}

TEST(Slots, what_r_makes_is_held_until_b) {
  Schedule schedule;
  schedule.ranks = {{{kRecompute, 0, 1},
                     {kBackward, 0, 1},
                     {kRecompute, 0, 2},
                     {kBackwardInput, 0, 2},
                     {kBackwardWeight, 0, 2}}};
  EXPECT_EQ(slots_of(schedule, Holding::kRecomputed).count(0), 1);
  std::swap(schedule.ranks[0][1], schedule.ranks[0][2]);
  EXPECT_EQ(slots_of(schedule, Holding::kRecomputed).count(0), 2);
}

TEST(Slots, what_a_group_ends_is_held_until_its_end) {
  Schedule schedule;
  schedule.ranks = {{{kForward, 0, 0}, {kBackward, 0, 0, 1}, {kForward, 0, 1, 1}}};
  EXPECT_EQ(slots_of(schedule, Holding::kActivations).count(0), 2);
  for (Action& action : schedule.ranks[0]) action.group = 0;
  EXPECT_EQ(slots_of(schedule, Holding::kActivations).count(0), 1);
}

TEST(Slots, the_one_that_has_been_free_for_longest_is_taken) {
  Schedule schedule;
  schedule.ranks = {{{kForward, 0, 0},
                     {kForward, 0, 1},
                     {kForward, 0, 2},
                     {kBackward, 0, 1},
                     {kBackward, 0, 0},
                     {kForward, 0, 3},
                     {kForward, 0, 4}}};
  EXPECT_EQ(slots_of(schedule, Holding::kActivations).of_stage(0),
            (std::vector<std::int32_t>{0, 1, 2, 1, 0}));
}

TEST(Slots, a_stage_takes_as_many_as_its_size_says) {
  Schedule schedule;
  schedule.placement = {0, 0};
  schedule.ranks = {{{kForward, 0, 0},
                     {kForward, 1, 0},
                     {kBackward, 1, 0},
                     {kForward, 0, 1},
                     {kBackward, 0, 0},
                     {kForward, 1, 1}}};
  const SlotTable table = slots_of(schedule, Holding::kActivations, {1, 3});
  EXPECT_EQ(table.of_stage(0), (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(table.of_stage(1), (std::vector<std::int32_t>{1, 2, 3, 2, 3, 0}));
  EXPECT_EQ(table.of(1, 1, 2), 0);
  EXPECT_EQ(table.count(0), 4);
  EXPECT_TRUE(slots_of(schedule, Holding::kActivations, {0, 3}).of_stage(0).empty());
}

/// Micro-batches that hold a slot at one time hold slots of their own, and there are no more slots
/// than are held at once.
TEST(Slots, of_every_kind_of_schedule_are_as_few_as_are_held_at_once) {
  for (std::size_t kind = 0; kind < schedule_names().size(); ++kind) {
    ScheduleRequest request;
    request.kind = static_cast<ScheduleKind>(kind);
    request.stages = 4;
    request.micro_batches = 16;
    request.times = {1, 1.1, 0.9, 0.02};
    request.w_memory = request.kind == ScheduleKind::kDualPipeV ? 1 : 1.4;
    const Schedule schedule = make_schedule(request);
    const SlotTable activations = slots_of(schedule, Holding::kActivations);
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      std::set<std::int32_t> held;
      std::int32_t most = 0;
      const std::vector<Action>& actions = schedule.ranks[rank];
      for (std::size_t i = 0; i < actions.size();) {
        const std::size_t end = end_of_group(actions, i);
        for (std::size_t j = i; j < end; ++j) {
          if (actions[j].kind != kForward) continue;
          const std::int32_t slot =
              activations.of(actions[j].virtual_stage, actions[j].micro_batch);
          EXPECT_TRUE(held.insert(slot).second) << schedule_names()[kind];
        }
        most = std::max(most, static_cast<std::int32_t>(held.size()));
        for (; i < end; ++i) {
          if (makes_weight_gradients(actions[i].kind))
            held.erase(activations.of(actions[i].virtual_stage, actions[i].micro_batch));
        }
      }
      EXPECT_EQ(activations.count(static_cast<std::int32_t>(rank)), most) << schedule_names()[kind];
    }
  }
}

}  // namespace
}  // namespace trireme
