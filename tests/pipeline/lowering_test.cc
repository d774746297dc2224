#include "pipeline/lowering.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "early_run.h"
#include "naive_run.h"
#include "pipeline/checker.h"
#include "pipeline/schedules/schedules.h"

namespace trireme {
namespace {

/// "F0.0 >1F0.0 [<1B1.0 >1F0.1] ... BW0.1!": > to, < from a rank, = within it; marks of batches in
/// brackets; a ! where a stage's sums are complete.
std::string text_of_steps(const std::vector<ProgramStep>& steps) {
  std::string text;
  std::int32_t batch = 0;
  for (const ProgramStep& step : steps) {
    if (batch != 0 && step.batch != batch) text += "]";
    text += text.empty() ? "" : " ";
    if (step.batch != 0 && step.batch != batch) text += "[";
    batch = step.batch;
    if (step.kind == StepKind::kSend || step.kind == StepKind::kReceive)
      text += fmt::format("{}{}", step.kind == StepKind::kSend ? ">" : "<", step.peer);
    text += (step.kind == StepKind::kCopy ? "=" : "") + text_of(step.action) +
            (step.last == LastMicroBatch::kYes ? "!" : "");
  }
  return text + (batch != 0 ? "]" : "");
}
std::string text_of_rank(const Program& program, std::size_t rank) {
  return text_of_steps(program.ranks[rank]);
}

TEST(Lowering, transfers_stand_where_they_are_made_and_have_room) {
  // Rank 1 has memory for one micro-batch, so it takes the second activation behind BW1.0.
  const Program program = lower(make_1f1b(2, 2), {1, 1, 1, 0});
  EXPECT_EQ(text_of_rank(program, 0), "F0.0 >1F0.0 F0.1 [>1F0.1 <1B1.0] BW0.0 <1B1.1 BW0.1!");
  EXPECT_EQ(text_of_rank(program, 1), "<0F0.0 F1.0 BW1.0 [<0F0.1 >0B1.0] F1.1 BW1.1! >0B1.1");
}

TEST(Lowering, hands_on_within_a_rank_an_activation_before_its_use_and_a_gradient_when_it_is_made) {
  Schedule schedule = make_1f1b(1, 1);
  schedule.ranks = {{{ActionKind::kForward, 0, 0},
                     {ActionKind::kForward, 1, 0},
                     {ActionKind::kBackward, 1, 0},
                     {ActionKind::kBackward, 0, 0}}};
  EXPECT_EQ(text_of_rank(lower(schedule), 0), "F0.0 =F0.0 F1.0 BW1.0! =B1.0 BW0.0!");
  // Stage 1 has one slot: its first gradient leaves before its second is made.
  schedule.ranks = {{{ActionKind::kForward, 0, 0},
                     {ActionKind::kForward, 0, 1},
                     {ActionKind::kForward, 1, 0},
                     {ActionKind::kBackward, 1, 0},
                     {ActionKind::kForward, 1, 1},
                     {ActionKind::kBackward, 1, 1},
                     {ActionKind::kBackward, 0, 0},
                     {ActionKind::kBackward, 0, 1}}};
  EXPECT_EQ(text_of_rank(lower(schedule), 0),
            "F0.0 F0.1 =F0.0 F1.0 BW1.0 =B1.0 =F0.1 F1.1 BW1.1! =B1.1 BW0.0 BW0.1!");
}

/// Stages on ranks at random, each action one that is ready: in an order as wild as a file may
/// hold.
Schedule random_schedule(std::mt19937& random) {
  const auto below = [&](std::size_t end) { return static_cast<std::size_t>(random() % end); };
  const auto ranks = static_cast<int>(1 + below(4)), held = static_cast<int>(1 + below(3));
  const auto stages = ranks * held, micro_batches = static_cast<int>(1 + below(6));
  Schedule schedule;
  schedule.reproducible = false;
  schedule.placement = interleaved_placement(ranks, held);
  std::shuffle(schedule.placement.begin(), schedule.placement.end(), random);
  schedule.ranks.resize(static_cast<std::size_t>(ranks));
  std::set<std::pair<int, int>> forward, again, back, weight;  // stage and micro-batch
  while (std::ssize(weight) < stages * micro_batches) {
    std::vector<Action> ready;
    for (int s = 0; s < stages; ++s) {
      for (int i = 0; i < micro_batches; ++i) {
        if (!forward.contains({s, i}) && (s == 0 || forward.contains({s - 1, i})))
          ready.push_back({ActionKind::kForward, s, i});
        if (forward.contains({s, i}) && !back.contains({s, i}) &&
            (s + 1 == stages || back.contains({s + 1, i}))) {
          ready.push_back({ActionKind::kBackwardInput, s, i});
          ready.push_back({ActionKind::kBackward, s, i});
        }
        if (forward.contains({s, i}) && !again.contains({s, i}) && !back.contains({s, i}))
          ready.push_back({ActionKind::kRecompute, s, i});
        if (back.contains({s, i}) && !weight.contains({s, i}))
          ready.push_back({ActionKind::kBackwardWeight, s, i});
      }
    }
    const Action action = ready[below(ready.size())];
    const std::pair pair{action.virtual_stage, action.micro_batch};
    if (action.kind == ActionKind::kForward) forward.insert(pair);
    if (action.kind == ActionKind::kRecompute) again.insert(pair);
    if (goes_back(action.kind)) back.insert(pair);
    if (makes_weight_gradients(action.kind)) weight.insert(pair);
    schedule
        .ranks[static_cast<std::size_t>(schedule.placement[static_cast<std::size_t>(pair.first)])]
        .push_back(action);
  }
  return schedule;
}

TEST(Lowering, every_valid_plan_has_a_program_however_wild_its_order) {
  std::mt19937 random(7);
  for (int round = 0; round < 1000; ++round) {
    const Schedule schedule = random_schedule(random);
    ASSERT_FALSE(check_schedule(schedule));
    const Program program = lower(schedule);
    const std::optional<ProgramFault> fault = check_program(schedule, program);
    ASSERT_FALSE(fault) << fault->rule << ", rank " << fault->rank << ": " << fault->message << "\n"
                        << schedule_json(schedule).dump();
    const NaiveResult result = naive_run(program, shape_of(schedule));
    ASSERT_EQ(result.fault, "");
    for (const TransferOrder order : {TransferOrder::kOfChannel, TransferOrder::kOfRank}) {
      const NaiveResult early = EarlyRun(schedule, program, order).run();
      ASSERT_EQ(early.fault, "") << schedule_json(schedule).dump();
      ASSERT_EQ(early.sums, result.sums);
    }
  }
}

TEST(Lowering, a_pass_of_evaluation_is_a_program_too) {
  const Schedule schedule = make_forward_pass(v_placement(2));
  const Program program = lower(schedule);
  EXPECT_EQ(text_of_rank(program, 0), "F0.0 >1F0.0 <1F2.0 F3.0");
  EXPECT_EQ(text_of_rank(program, 1), "<0F0.0 F1.0 =F1.0 F2.0 >0F2.0");
  EXPECT_FALSE(check_program(schedule, program));
}

TEST(Lowering, an_executor_receives_one_action_ahead_where_memory_is_free) {
  const Schedule schedule = make_1f1b(2, 3);
  const Program program = lower(schedule, {1, 1, 1e-3, 0});
  const auto early = [&](std::size_t rank) {
    const SlotTable slots = slots_of(schedule, Holding::kActivations);
    std::vector<ProgramStep> steps =
        start_early(program.ranks[rank], [&](int stage, int i) { return slots.of(stage, i); });
    for (ProgramStep& step : steps) step.batch = 0;
    return text_of_steps(steps);
  };
  EXPECT_EQ(early(0),
            "F0.0 >1F0.0 <1B1.0 F0.1 >1F0.1 BW0.0 <1B1.1 F0.2 >1F0.2 <1B1.2 BW0.1 BW0.2!");
  EXPECT_EQ(early(1),
            "<0F0.0 F1.0 BW1.0 <0F0.1 >0B1.0 F1.1 BW1.1 >0B1.1 <0F0.2 F1.2 BW1.2! >0B1.2");
}

// As NCCL's kernels start: an early receive of one rank in front of its send, and the other's the
// other way round, would wait for each other for ever.
TEST(Lowering, an_executor_keeps_a_ranks_order_of_transfers_where_each_waits_for_those_before_it) {
  const Schedule schedule = make_1f1b(2, 3);
  const Program program = lower(schedule, {1, 1, 1e-3, 0});
  const auto early = [&](std::size_t rank) {
    const SlotTable slots = slots_of(schedule, Holding::kActivations);
    std::vector<ProgramStep> steps = start_early(
        program.ranks[rank], [&](int stage, int i) { return slots.of(stage, i); },
        TransferOrder::kOfRank);
    for (ProgramStep& step : steps) step.batch = 0;
    return text_of_steps(steps);
  };
  EXPECT_EQ(early(0),
            "F0.0 >1F0.0 F0.1 >1F0.1 <1B1.0 BW0.0 <1B1.1 F0.2 >1F0.2 <1B1.2 BW0.1 BW0.2!");
  EXPECT_EQ(early(1),
            "<0F0.0 F1.0 BW1.0 <0F0.1 >0B1.0 F1.1 BW1.1 >0B1.1 <0F0.2 F1.2 BW1.2! >0B1.2");
}

// What a receive waits for may need the action in front of it: then it starts behind that.
TEST(Lowering, no_receive_stands_before_an_action_that_it_depends_on) {
  const auto early = [](const Schedule& schedule, std::size_t rank) {
    const SlotTable slots = slots_of(schedule, Holding::kActivations);
    std::vector<ProgramStep> steps = start_early(
        lower(schedule).ranks[rank], [&](int stage, int i) { return slots.of(stage, i); });
    for (ProgramStep& step : steps) step.batch = 0;
    return text_of_steps(steps);
  };
  EXPECT_EQ(early(make_gpipe(2, 2), 0), "F0.0 >1F0.0 F0.1 >1F0.1 <1B1.0 <1B1.1 BW0.0 BW0.1!");
  EXPECT_EQ(early(make_forward_pass(v_placement(2)), 0), "F0.0 >1F0.0 <1F2.0 F3.0");
  for (const Schedule& schedule : {make_gpipe(2, 2), make_forward_pass(v_placement(2))}) {
    Program program = lower(schedule);
    ASSERT_FALSE(check_program(schedule, program));
    for (ProgramStep& step : program.ranks[0]) step.ahead = step.kind == StepKind::kReceive;
    EXPECT_EQ(check_program(schedule, program).value().rule, "early");
  }
}

TEST(Lowering, joins_what_two_ranks_exchange) {
  // Rank 0 has made its third output when rank 1 has made its second gradient.
  const Program program = lower(make_1f1b(2, 3), {1, 1, 1e-3, 0});
  EXPECT_EQ(text_of_rank(program, 0),
            "F0.0 >1F0.0 F0.1 [>1F0.1 <1B1.0] BW0.0 F0.2 [<1B1.1 >1F0.2] BW0.1 <1B1.2 BW0.2!");
  EXPECT_EQ(text_of_rank(program, 1),
            "<0F0.0 F1.0 BW1.0 [<0F0.1 >0B1.0] F1.1 BW1.1 [>0B1.1 <0F0.2] F1.2 BW1.2! >0B1.2");
}

TEST(Lowering, every_schedule_runs_with_blocking_transfers) {
  for (std::size_t kind = 0; kind < schedule_names().size(); ++kind) {
    for (const int stages : {1, 2, 3, 4, 6}) {
      for (const ActionTimes& times : {ActionTimes{}, ActionTimes{1, 1, 1, 0.05},
                                       ActionTimes{2, 3, 1, 1}, ActionTimes{1, 2.1, .3, 4}}) {
        ScheduleRequest request;
        request.kind = static_cast<ScheduleKind>(kind);
        request.stages = stages;
        request.micro_batches = 2 * stages;
        request.times = times;
        const Schedule schedule = make_schedule(request);
        const ScheduleShape shape = shape_of(schedule);
        const Program program = lower(schedule, times);
        const std::optional<ProgramFault> fault = check_program(schedule, program);
        ASSERT_FALSE(fault) << schedule_names()[kind] << ": " << fault->rule << ", "
                            << fault->message;
        const NaiveResult result = naive_run(program, shape);
        ASSERT_EQ(result.fault, "");
        ASSERT_EQ(result.sums, naive_run(schedule, shape).sums);
        for (const TransferOrder order : {TransferOrder::kOfChannel, TransferOrder::kOfRank}) {
          const NaiveResult early = EarlyRun(schedule, program, order).run();
          ASSERT_EQ(early.fault, "") << schedule_names()[kind];
          ASSERT_EQ(early.sums, result.sums) << schedule_names()[kind];
        }
      }
    }
  }
}

TEST(Lowering, no_gradient_goes_to_stages_that_have_nothing_to_train) {
  for (std::size_t kind = 0; kind < schedule_names().size(); ++kind) {
    for (const int stages : {2, 3, 4}) {
      ScheduleRequest request;
      request.kind = static_cast<ScheduleKind>(kind);
      request.stages = stages;
      request.micro_batches = 2 * stages;
      Schedule schedule = make_schedule(request);
      const std::int32_t all = shape_of(schedule).virtual_stages;
      for (const std::int32_t first : {1, all / 2, all - 1}) {
        schedule.first_trained = first;
        ActionTimes times;
        for (std::int32_t stage = 0; stage < all; ++stage) {
          const double back = stage < first ? 1e-3 : 1;
          times.stages.push_back({1, back, back});
        }
        const Program program = lower(schedule, times);
        const std::optional<ProgramFault> fault = check_program(schedule, program);
        ASSERT_FALSE(fault) << schedule_names()[kind] << ": " << fault->rule << ", "
                            << fault->message;
        std::int64_t gradients = 0;
        for (const std::vector<ProgramStep>& steps : program.ranks) {
          for (const ProgramStep& step : steps) {
            if (step.kind == StepKind::kAction || step.kind == StepKind::kReceive) continue;
            if (step.action.kind != ActionKind::kBackwardInput) continue;
            EXPECT_GT(step.action.virtual_stage, first) << schedule_names()[kind];
            ++gradients;
          }
        }
        EXPECT_EQ(gradients, (all - 1 - first) * 2 * stages) << schedule_names()[kind];
      }
    }
  }
}

std::string fault_of(const Schedule& schedule, const Program& program) {
  const std::optional<ProgramFault> fault = check_program(schedule, program);
  return fault ? fmt::format("{}, rank {}, position {}: {}", fault->rule, fault->rank,
                             fault->position, fault->message)
               : "none";
}

TEST(Lowering, the_checker_names_what_is_wrong) {
  const Schedule schedule = make_1f1b(2, 2);
  const Program right = lower(schedule, {});
  EXPECT_EQ(fault_of(schedule, right), "none");
  Program program = right;
  program.ranks[0].erase(program.ranks[0].begin() + 1);
  EXPECT_EQ(fault_of(schedule, program), "matched, rank 0, position 0: its output is not sent");
  program = right;
  program.ranks[1].erase(program.ranks[1].begin());
  EXPECT_EQ(fault_of(schedule, program), "matched, rank 1, position 0: its input is not received");
  program = right;
  std::swap(program.ranks[0][0], program.ranks[0][1]);
  EXPECT_EQ(fault_of(schedule, program),
            "use, rank 0, position 1: its output is sent before, at position 0");
  program = right;
  std::swap(program.ranks[1][0], program.ranks[1][1]);
  EXPECT_EQ(fault_of(schedule, program),
            "use, rank 1, position 0: its input is received after it, at position 1");
  program = right;
  program.ranks[0][1].peer = 0;
  EXPECT_EQ(fault_of(schedule, program),
            "matched, rank 0, position 1: no output of F0.0 goes this way between rank 0 and 0");
  program = right;
  program.ranks[0][1].batch = 3;
  EXPECT_EQ(fault_of(schedule, program),
            "batch, rank 0, position 1: no send and receive with one peer");
  Program apart = right;
  for (std::vector<ProgramStep>& steps : apart.ranks)
    for (ProgramStep& step : steps) step.batch = 0;
  program = apart;
  std::swap(program.ranks[1][2], program.ranks[1][3]);
  EXPECT_EQ(fault_of(schedule, program),
            "memory, rank 1, position 2: its memory is that of micro-batch 0 of virtual stage 1");
  program = apart;
  std::rotate(program.ranks[1].begin() + 4, program.ranks[1].begin() + 5,
              program.ranks[1].begin() + 7);
  EXPECT_EQ(fault_of(schedule, program),
            "memory, rank 1, position 5: micro-batch 0 of virtual stage 1 is not sent from there");
  program = right;
  program.ranks[0][5].last = LastMicroBatch::kYes;
  EXPECT_EQ(fault_of(schedule, program),
            "sums, rank 0, position 5: its stage's sums are not complete after it");
  program = apart;
  // Rank 0 wants to receive the gradient before it sends what rank 1 stands and waits for.
  std::swap(program.ranks[0][3], program.ranks[0][4]);
  EXPECT_EQ(fault_of(schedule, program),
            "blocking, rank 0, position 3: it waits for rank 1, and that never comes to it");
}

}  // namespace
}  // namespace trireme
