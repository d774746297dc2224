#include "train/evaluator.h"

#include <algorithm>

#include "base/progress.h"

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
  return {loss_sum / static_cast<double>(std::max<std::int64_t>(1, tokens)), tokens};
}

void rehearse_evaluation(Runtime& runtime, EvaluationBatches& batches) {
  runtime.stage.begin_evaluation(batches.read(0));
  runtime.evaluator.run(runtime.trace);
}

}  // namespace trireme
