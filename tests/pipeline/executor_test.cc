#include "pipeline/executor.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "base/fiber.h"

namespace trireme {
namespace {

/// Writes down what it is asked to do.
class Recorder final : public StageProgram {
 public:
  void forward(int, int micro_batch) override { note("F", micro_batch, LastMicroBatch::kNo); }
  void recompute(int, int micro_batch) override { note("R", micro_batch, LastMicroBatch::kNo); }
  void backward_input(int, int micro_batch) override {
    note("B", micro_batch, LastMicroBatch::kNo);
  }
  void backward_weight(int, int micro_batch, LastMicroBatch last) override {
    note("W", micro_batch, last);
  }
  void backward(int, int micro_batch, LastMicroBatch last) override {
    note("BW", micro_batch, last);
  }
  TensorView boundary(int, int, Boundary) override { return {}; }
  [[nodiscard]] int slot(int, int) const override { return 0; }
  void copy(TensorView, TensorView) override {}
  std::string text;

 private:
  void note(const char* name, int micro_batch, LastMicroBatch last) {
    text += std::string(text.empty() ? "" : " ") + name + std::to_string(micro_batch) +
            (last == LastMicroBatch::kYes ? "!" : "");
  }
};

std::string run(const Schedule& schedule, int rank) {
  Recorder recorder;
  Trace trace(64);
  std::vector<ProgramStep> steps = lower(schedule).ranks[static_cast<std::size_t>(rank)];
  std::erase_if(steps, [](const ProgramStep& step) { return step.kind != StepKind::kAction; });
  Executor(steps, recorder).run(trace);
  EXPECT_EQ(trace.take_spans().size(), schedule.ranks[static_cast<std::size_t>(rank)].size());
  return recorder.text;
}

TEST(Executor, one_stage_runs_a_micro_batch_at_a_time_and_marks_the_last) {
  EXPECT_EQ(run(make_1f1b(1, 3), 0), "F0 BW0 F1 BW1 F2 BW2!");
}

TEST(Executor, stages_of_1f1b_run_ahead_by_their_distance_from_the_end) {
  const Schedule schedule = make_1f1b(4, 6);
  EXPECT_EQ(run(schedule, 0), "F0 F1 F2 F3 BW0 F4 BW1 F5 BW2 BW3 BW4 BW5!");
  EXPECT_EQ(run(schedule, 3), "F0 BW0 F1 BW1 F2 BW2 F3 BW3 F4 BW4 F5 BW5!");
}

TEST(Executor, fewer_micro_batches_than_stages_all_run_ahead) {
  EXPECT_EQ(run(make_1f1b(4, 2), 0), "F0 F1 BW0 BW1!");
}

TEST(Executor, the_last_weight_action_is_last_also_when_w_is_late) {
  Schedule schedule;
  schedule.ranks = {{{ActionKind::kForward, 0, 0},
                     {ActionKind::kForward, 0, 1},
                     {ActionKind::kBackwardInput, 0, 0},
                     {ActionKind::kBackwardInput, 0, 1},
                     {ActionKind::kBackwardWeight, 0, 0},
                     {ActionKind::kBackwardWeight, 0, 1}}};
  EXPECT_EQ(run(schedule, 0), "F0 F1 B0 B1 W0 W1!");
}

TEST(Executor, makes_again_what_a_plan_says) {
  Schedule schedule = make_1f1b(2, 2);
  schedule.ranks[0].insert(schedule.ranks[0].begin() + 2, {ActionKind::kRecompute, 0, 0});
  EXPECT_EQ(run(schedule, 0), "F0 F1 R0 BW0 BW1!");
}

TEST(Executor, a_forward_program_is_asked_to_go_forward_alone) {
  Recorder recorder;
  ForwardProgram& forward = recorder;
  std::vector<ProgramStep> steps(2);
  steps[1].action.micro_batch = 1;
  Trace trace(64);
  Executor(steps, forward).run(trace);
  EXPECT_EQ(recorder.text, "F0 F1");
  steps[1].action.kind = ActionKind::kBackward;
  EXPECT_THROW(Executor(steps, forward), InternalError);
}

/// Says when an action begins and ends, and gives way between.
class InTurns final : public StageProgram {
 public:
  explicit InTurns(bool takes_turns) : takes_turns_(takes_turns) {}
  void forward(int, int micro_batch) override { note("F", micro_batch); }
  void recompute(int, int micro_batch) override { note("R", micro_batch); }
  void backward_input(int, int micro_batch) override { note("B", micro_batch); }
  void backward_weight(int, int micro_batch, LastMicroBatch) override { note("W", micro_batch); }
  void backward(int, int micro_batch, LastMicroBatch) override { note("BW", micro_batch); }
  TensorView boundary(int, int, Boundary) override { return {}; }
  [[nodiscard]] int slot(int, int) const override { return 0; }
  [[nodiscard]] bool takes_turns() const override { return takes_turns_; }
  void copy(TensorView, TensorView) override {}
  std::string text;

 private:
  void note(const char* name, int micro_batch) {
    text += fmt::format("{}{}( ", name, micro_batch);
    give_way();
    text += fmt::format(") ");
  }
  bool takes_turns_;
};

TEST(Executor, actions_of_a_group_take_turns_where_the_stage_can) {
  const std::vector<Action> actions = {{ActionKind::kForward, 0, 0},
                                       {ActionKind::kForward, 0, 1, 1},
                                       {ActionKind::kBackward, 0, 0, 1},
                                       {ActionKind::kBackward, 0, 1}};
  std::vector<ProgramStep> steps;
  for (const Action& action : actions) steps.push_back({StepKind::kAction, action});
  const auto run = [&](bool takes_turns) {
    InTurns stage(takes_turns);
    Trace trace(64);
    Executor executor(steps, stage);
    executor.run(trace);
    EXPECT_GT(executor.occupation().busy_ns, 0);
    const std::string once = std::exchange(stage.text, "");
    executor.run(trace);
    EXPECT_EQ(stage.text, once);
    return once;
  };
  EXPECT_EQ(run(false), "F0( ) F1( ) BW0( ) BW1( ) ");
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_EQ(run(true), "F0( ) F1( BW0( ) ) BW1( ) ");
#endif
}

}  // namespace
}  // namespace trireme
