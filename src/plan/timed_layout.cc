#include "plan/timed_layout.h"

#include "plan/rank_memory.h"
#include "plan/run_cost.h"

namespace trireme {

namespace {

/// Money for 10^9 tokens at this pace.
std::optional<double> cost_of_tokens(const LayoutTask& task, const PredictedStep& step,
                                     std::int64_t samples) {
  RunLength length;
  length.tokens = static_cast<double>(samples * task.config.data.sequence_length);
  length.seconds = step.seconds;
  length.devices = task.input.world;
  length.busy = 1 - (step.bubble + step.host) / step.seconds;
  return cost_of(length, task.cluster).cost_per_1e9_tokens;
}

std::optional<ResolvedRun> resolved(const LayoutTask& task, const RunConfig& config,
                                    std::vector<Problem>& problems) {
  std::vector<std::string> notes;
  const std::size_t faults = problems.size();
  ResolveInput input = task.input;
  input.detail = PipelineDetail::kSchedule;
  ResolvedRun run = resolve_run(config, input, problems, notes);
  if (problems.size() > faults) return {};
  return run;
}

TimedLayout timed(const LayoutTask& task, const RunConfig& config, const ResolvedRun& run) {
  TimedLayout layout;
  layout.choice = choice_of(config, run.batch.micro);
  layout.mesh = run.mesh;
  layout.batch = run.batch;
  layout.fp8 = run.fp8;
  layout.compute = run.compute;
  layout.step = predict_step(config.model, step_layout(config, run), task.cluster);
  layout.cost = cost_of_tokens(task, layout.step, run.batch.global);
  return layout;
}

}  // namespace

std::optional<TimedLayout> time_layout(const LayoutTask& task, const RunConfig& config,
                                       std::vector<Problem>& problems) {
  const std::optional<ResolvedRun> run = resolved(task, config, problems);
  if (!run) return {};
  TimedLayout layout = timed(task, config, *run);
  layout.memory = most_memory(config, *run);
  return layout;
}

std::optional<TimedLayout> time_if_it_fits(const LayoutTask& task, const RunConfig& config,
                                           std::vector<Problem>& problems, std::int64_t& missed) {
  const std::optional<ResolvedRun> run = resolved(task, config, problems);
  if (!run) return {};
  if (task.memory > 0) {
    missed = most_memory_of_firsts(config, *run).total();
    if (missed > task.memory) return {};
  }
  TimedLayout layout = timed(task, config, *run);
  layout.memory = most_memory(config, *run);
  missed = layout.bytes();
  if (task.memory > 0 && missed > task.memory) return {};
  return layout;
}

}  // namespace trireme
