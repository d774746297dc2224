#include "train/step.h"

#include <cmath>

#include "pipeline/executor.h"

namespace trireme {

void Step::forward_backward(std::span<const MicroBatch> micro_batches, std::int64_t target_count) {
  {
    const Span span(runtime_.trace, Phase::kOptimizer);
    runtime_.store.clear_gradients(runtime_.context);
  }
  runtime_.stage.begin_step(micro_batches, target_count,
                            [this](int block) { runtime_.reduction->start(block); });
  execute(runtime_.plan, 0, runtime_.stage, runtime_.trace);
  const Span span(runtime_.trace, Phase::kCommunication);
  runtime_.reduction->finish();
}

double Step::gradient_norm() {
  const Span span(runtime_.trace, Phase::kOptimizer);
  return trireme::gradient_norm(runtime_.context, runtime_.store);
}

void Step::update(double lr, double norm) {
  const Span span(runtime_.trace, Phase::kOptimizer);
  runtime_.optimizer->step(runtime_.context, lr,
                           clip_coefficient(norm, runtime_.config.optimizer.clip_grad_norm));
}

std::string Step::find_non_finite(std::span<const MicroBatch> micro_batches,
                                  std::int64_t target_count) {
  runtime_.store.clear_gradients(runtime_.context);
  runtime_.stage.begin_step(micro_batches, target_count, {});
  execute(runtime_.plan, 0, runtime_.stage, runtime_.trace);
  const std::string tensor = first_non_finite_gradient(runtime_.context, runtime_.store);
  if (!tensor.empty()) return tensor;
  return std::isfinite(runtime_.stage.loss_sum()) ? "" : "loss";
}

}  // namespace trireme
