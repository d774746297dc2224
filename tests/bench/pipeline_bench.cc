// The bubble of real runs beside the simulated one: the executor and its links over MPI, with
// stages that sleep in place of computing, so that ranks may share cores and every pass takes its
// time.
//
//   tests/support/mpirun.sh 4 build/.../pipeline_bench [MILLISECONDS] [MICRO_BATCHES] [W_MEMORY]
//
// MILLISECONDS: of F, B and W each of a full stage (20). W_MEMORY: what W keeps, in activations,
// for schedules that ask (1). Then the time from step to step where all wait for the norm, and
// where they go on meanwhile (parallel.speculative_step). Ends with 1 where a measured bubble is
// more than 3 points from the simulated one, or zb-auto takes longer than 1f1b.

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/launch.h"
#include "pipeline/executor.h"
#include "pipeline/schedules/schedules.h"
#include "train/step_reports.h"

namespace {

using namespace trireme;

constexpr std::int64_t kNumbers = 1024;  // of a message between stages
constexpr int kSteps = 4;                // the first is not counted

class SleepingStage final : public StageProgram {
 public:
  SleepingStage(const Schedule& schedule, int rank, const ActionTimes& milliseconds)
      : times_(milliseconds) {
    const ScheduleShape shape = shape_of(schedule);
    const SlotTable table = slots_of(schedule, Holding::kActivations);
    for (int stage = 0; stage < shape.virtual_stages; ++stage) {
      if (shape.placement[static_cast<std::size_t>(stage)] == rank)
        chunks_.push_back(table.of_stage(stage));
    }
    slots_.resize(static_cast<std::size_t>(table.count(rank)));
    for (Slot& slot : slots_) {
      for (std::vector<float>& boundary : slot) boundary.resize(kNumbers);
    }
  }

  void forward(int, int) override { sleep(times_.forward); }
  void recompute(int, int) override { sleep(times_.forward); }
  void backward_input(int, int) override { sleep(times_.backward_input); }
  void backward_weight(int, int, LastMicroBatch) override { sleep(times_.backward_weight); }
  void backward(int, int, LastMicroBatch) override {
    sleep(times_.backward_input + times_.backward_weight);
  }
  TensorView boundary(int chunk, int micro_batch, Boundary which) override {
    Slot& own = slots_[static_cast<std::size_t>(slot(chunk, micro_batch))];
    return view_of(own[static_cast<std::size_t>(which)].data(), {kNumbers});
  }
  [[nodiscard]] int slot(int chunk, int micro_batch) const override {
    return chunks_[static_cast<std::size_t>(chunk)][static_cast<std::size_t>(micro_batch)];
  }
  void copy(TensorView, TensorView) override {}

 private:
  using Slot = std::array<std::vector<float>, 4>;
  static void sleep(double milliseconds) {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds));
  }
  ActionTimes times_;
  std::vector<std::vector<std::int32_t>> chunks_;  // the slots of their micro-batches
  std::vector<Slot> slots_;
};

struct NamedPlan {
  std::string name;
  Schedule schedule;
  ActionTimes times;
};

struct Measured {
  double milliseconds = 0, bubble = 0;  ///< of the longest rank; of all ranks beside it
};

/// The step of least bubble: what else the machine does can only add to it.
Measured measure(Communicator& world, const Schedule& schedule, const ActionTimes& times) {
  SleepingStage stage(schedule, world.rank(), times);
  StageLinks links(world, shape_of(schedule).placement,
                   [](Communicator& group, const char* name) { return group.channel(name); });
  const Program program = lower(schedule, times);
  Executor executor(program.ranks[static_cast<std::size_t>(world.rank())], stage, &links);
  Trace trace;
  Measured best{0, 1};
  for (int step = 0; step < kSteps; ++step) {
    world.barrier();
    executor.run(trace);
    const Executor::Occupation mine = executor.occupation();
    std::vector<Executor::Occupation> all(static_cast<std::size_t>(world.size()));
    world.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    double longest = 0, busy = 0;
    for (const Executor::Occupation& one : all) {
      longest = std::max(longest, static_cast<double>(one.span_ns));
      busy += static_cast<double>(one.busy_ns) / world.size();
    }
    const Measured now{longest * 1e-6, 1 - busy / longest};
    if (step > 0 && now.bubble < best.bubble) best = now;
  }
  return best;
}

/// Milliseconds from the start of a step to that of the next, on the rank where it takes longest;
/// `beside`: the reports of a step are awaited behind the next.
double from_step_to_step(Communicator& world, const Schedule& schedule, const ActionTimes& times,
                         bool beside) {
  constexpr int kFirst = 1, kLast = 9;
  SleepingStage stage(schedule, world.rank(), times);
  StageLinks links(world, shape_of(schedule).placement,
                   [](Communicator& group, const char* name) { return group.channel(name); });
  const Program program = lower(schedule, times);
  Executor executor(program.ranks[static_cast<std::size_t>(world.rank())], stage, &links);
  StepReports reports(world);
  Trace trace;
  std::int64_t span_ns = 0;
  world.barrier();
  for (int step = 0; step <= kLast; ++step) {
    if (step == kFirst) span_ns = -steady_now_ns();
    if (step == kLast) span_ns += steady_now_ns();
    executor.run(trace);
    if (beside && step > 0) reports.finish();
    reports.start({});
    if (!beside || step == kLast) reports.finish();
  }
  world.maximum(std::span(&span_ns, 1));
  return static_cast<double>(span_ns) * 1e-6 / (kLast - kFirst);
}

void compare_steps(Communicator& world, const std::vector<NamedPlan>& plans) {
  if (world.rank() == 0) {
    fmt::print(
        "\n| schedule | step that awaits the norm, ms | simulated | that does not, ms | "
        "simulated | gain |\n|---|---|---|---|---|---|\n");
  }
  for (const NamedPlan& each : plans) {
    const double awaited = from_step_to_step(world, each.schedule, each.times, false);
    const double ahead = from_step_to_step(world, each.schedule, each.times, true);
    const Simulation simulated = simulate(each.schedule, each.times);
    if (world.rank() == 0) {
      fmt::print("| {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.3f} |\n", each.name, awaited,
                 simulated.step_span, ahead, simulated.cost, awaited / ahead);
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  Launch launch;
  Communicator& world = launch.job();
  const int ranks = world.size();
  const double pass = count > 1 ? std::atof(arguments[1]) : 20;
  const int micro_batches = count > 2 ? std::atoi(arguments[2]) : 4 * ranks;
  const double w_memory = count > 3 ? std::atof(arguments[3]) : 1;
  if (world.rank() == 0) {
    fmt::print(
        "{} ranks, {} micro-batches, {:g} ms each of F, B and W of a stage, {:g} kept for W\n\n",
        ranks, micro_batches, pass, w_memory);
    fmt::print("| schedule | step, ms | bubble measured | simulated | difference |\n");
    fmt::print("|---|---|---|---|---|\n");
  }
  std::map<std::string, double> steps;
  std::vector<NamedPlan> plans;
  bool good = true;
  for (const std::string& name : schedule_names()) {
    ScheduleRequest request;
    request.kind = *schedule_kind(name);
    request.stages = ranks;
    request.micro_batches = micro_batches;
    request.w_memory = w_memory;
    const double part = pass / default_virtual_stages(request.kind);
    request.times = {part, part, part, 0};
    if (request.kind == ScheduleKind::kZbAuto) request.memory_limit = 2 * ranks;
    const Schedule schedule = make_schedule(request);
    const double simulated = simulate(schedule, request.times).bubble_rate;
    const Measured found = measure(world, schedule, request.times);
    const bool near = std::abs(found.bubble - simulated) <= 0.03;
    good = good && near;
    steps[name] = found.milliseconds;
    plans.push_back({name, schedule, request.times});
    if (world.rank() == 0) {
      fmt::print("| {} | {:.1f} | {:.4f} | {:.4f} | {:+.4f}{} |\n", name, found.milliseconds,
                 found.bubble, simulated, found.bubble - simulated, near ? "" : " too far");
    }
  }
  const double ratio = steps["1f1b"] / steps["zb-auto"];
  if (world.rank() == 0) fmt::print("\n1f1b takes {:.3f} times as long as zb-auto\n", ratio);
  good = good && ratio > 1;
  compare_steps(world, plans);
  return good ? 0 : 1;
}
