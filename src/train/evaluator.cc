#include "train/evaluator.h"

#include <algorithm>
#include <limits>

#include "base/log.h"
#include "base/progress.h"
#include "train/reporter.h"
#include "train/samples.h"

namespace trireme {

EvaluationResult evaluate(Runtime& runtime, EvaluationBatches& batches,
                          const std::function<void()>& before_pass) {
  const Span span(runtime.trace, Phase::kEvaluation);
  Progress progress("evaluating", batches.samples(), ProgressUnit::kItems);
  double loss_sum = 0;
  std::int64_t tokens = 0;
  for (std::int64_t i = 0; i < batches.passes(); ++i) {
    if (before_pass) before_pass();
    const MicroBatch& batch = batches.read(i);
    runtime.stage.begin_evaluation(batch);
    runtime.evaluator.run(runtime.trace);
    loss_sum += runtime.stage.loss_sum();
    tokens += batch.target_count;
    progress.add(batches.samples() * (i + 1) / batches.passes() -
                 batches.samples() * i / batches.passes());
  }
  loss_sum = runtime.sum_of_losses(loss_sum);
  runtime.channels.peers->sum(std::span(&tokens, 1));
  if (tokens == 0) return {std::numeric_limits<double>::quiet_NaN(), 0};  // a mean of nothing
  return {loss_sum / static_cast<double>(tokens), tokens};
}

void rehearse_evaluation(Runtime& runtime, EvaluationBatches& batches) {
  runtime.stage.begin_evaluation(batches.read(0));
  runtime.evaluator.run(runtime.trace);
}

bool RunEvaluation::is_due_behind(std::int64_t step) const {
  const std::int64_t interval = runtime_.config.evaluation.interval_steps;
  return (!inputs_.validation.empty() || inputs_.samples != nullptr) &&
         (step >= inputs_.prepared.run.steps || (interval > 0 && step % interval == 0));
}

std::optional<double> RunEvaluation::run() {
  runtime_.read(Runtime::Read::kSaved);
  std::vector<SetLoss> losses;
  for (const ValidationSet& set : inputs_.validation) {
    const EvaluationResult result = evaluate(runtime_, *set.batches);
    losses.push_back({set.name, result.loss});
    if (inputs_.reporter == nullptr) continue;
    inputs_.reporter->evaluation(
        {progress_.step, result.loss, result.perplexity(), result.tokens, set.name});
  }
  std::optional<double> loss;
  if (!losses.empty()) loss = take_loss(losses);
  if (inputs_.samples != nullptr) {
    for (const SampleLine& line :
         inputs_.samples->continue_prompts(progress_.step, inputs_.watchdog)) {
      inputs_.reporter->sample(line);
    }
  }
  runtime_.read(Runtime::Read::kTrained);
  if (inputs_.reporter != nullptr) inputs_.reporter->evaluated();
  return loss;
}

std::optional<double> RunEvaluation::take_loss(std::span<const SetLoss> losses) {
  const RunConfig& config = runtime_.config;
  const std::optional<std::string>& watch = config.evaluation.watch;
  const double loss = watched_loss(losses, watch.value_or(""));
  progress_.best.take(loss);
  if (!config.checkpoint.keep_best && config.evaluation.stop_after == 0) return std::nullopt;
  if (losses.size() > 1) {
    log_info("the loss that decides what is better is {:.4f}, {}", loss,
             watch ? "that of " + *watch : fmt::format("the mean of {} sets", losses.size()));
  }
  return loss;
}

bool RunEvaluation::stops_early() const {
  const std::int64_t patience = runtime_.config.evaluation.stop_after;
  return patience > 0 && progress_.best.evaluations_since >= patience;
}

}  // namespace trireme
