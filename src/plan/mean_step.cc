#include "plan/mean_step.h"

namespace trireme {

namespace {

void add(PredictedStep& sum, const PredictedStep& step, double share) {
  sum.seconds += share * step.seconds;
  sum.compute += share * step.compute;
  sum.host += share * step.host;
  sum.bubble += share * step.bubble;
  sum.optimizer += share * step.optimizer;
  for (const Axis axis : kTrafficAxes) {
    sum.exposed[axis] += share * step.exposed[axis];
    sum.hidden[axis] += share * step.hidden[axis];
    sum.bytes[axis] += share * step.bytes[axis];
  }
}

}  // namespace

PredictedStep predict_mean_step(const PredictedStep& largest, const RunConfig& config,
                                const ResolvedRun& run, const Cluster& cluster) {
  const std::vector<std::int64_t> sizes = run.ramp.sizes();
  if (sizes.size() == 1 || run.steps == 0) return largest;
  StepLayout layout = step_layout(config, run);
  const std::vector<BatchRamp::Stretch> stretches = run.ramp.stretches(0, run.steps);
  PredictedStep mean;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    double steps = 0;
    for (const auto& [count, size] : stretches)
      steps += size == sizes[i] ? static_cast<double>(count) : 0;
    layout.passes = run.passes_of(sizes[i]);
    layout.schedule = &run.pipeline.steps[i].schedule;
    add(mean, i == 0 ? largest : predict_step(config.model, layout, cluster),
        steps / static_cast<double>(run.steps));
  }
  return mean;
}

}  // namespace trireme
