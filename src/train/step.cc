#include "train/step.h"

#include <cmath>

#include "pipeline/executor.h"

namespace trireme {

namespace {

/// Transfers between GPUs are not recorded yet.
StepGraph::Mode graph_mode(const Runtime& runtime) {
  return runtime.config.run.cuda_graph == CudaGraph::kOff || runtime.mesh.size() > 1
             ? StepGraph::Mode::kOff
             : StepGraph::Mode::kAuto;
}

}  // namespace

Step::Step(Runtime& runtime) : runtime_(runtime), graph_(runtime.context, graph_mode(runtime)) {}

void Step::forward_backward_here(std::span<const MicroBatch> micro_batches,
                                 std::int64_t target_count,
                                 const std::function<void(int)>& gradients_ready) {
  runtime_.stage.begin_step(micro_batches, target_count, gradients_ready);
  set_step_key(key_, target_count, runtime_.stage.batches_of_step());
  const std::int64_t waited_ns = runtime_.channels.exposed().in_passes_ns();
  graph_.run(key_, [&] {
    runtime_.stage.rewind();
    {
      const Span span(runtime_.trace, Phase::kOptimizer);
      runtime_.store.clear_gradients(runtime_.context);
    }
    runtime_.executor.run(runtime_.trace);
  });
  waits_in_passes_ns_ += runtime_.channels.exposed().in_passes_ns() - waited_ns;
}

void Step::forward_backward(std::span<const MicroBatch> micro_batches, std::int64_t target_count) {
  runtime_.reduction->begin_step();
  // Gradients of a tied weight with two homes are added first, where they stay here.
  std::optional<TiedHomes>& tied = runtime_.tied_homes;
  const bool tied_first = tied && runtime_.store.keeps_gradients();
  forward_backward_here(micro_batches, target_count, [&](int block) {
    if (!tied_first || block != tied->block()) runtime_.reduction->start(block);
  });
  {
    const Span span(runtime_.trace, Phase::kCommunication);
    if (tied_first) {
      tied->add();
      runtime_.reduction->start(tied->block());
    }
    runtime_.reduction->finish();
    if (tied && !tied_first) tied->add();
    if (runtime_.partial) runtime_.partial->sum();
    if (runtime_.same_heads) runtime_.same_heads->sum();
  }
  if (!runtime_.context.on_gpu()) return;
  // Kernels are launched ahead of time; their time is that of waiting for them.
  const Span span(runtime_.trace, Phase::kBackwardInput);
  runtime_.context.synchronize();
}

double Step::gradient_norm() {
  const Span span(runtime_.trace, Phase::kOptimizer);
  return trireme::gradient_norm(runtime_.context, runtime_.store, runtime_.world());
}

void Step::update(double lr, double norm) {
  const Span span(runtime_.trace, Phase::kOptimizer);
  runtime_.optimizer->step(runtime_.context, lr,
                           clip_coefficient(norm, runtime_.config.optimizer.clip_grad_norm));
  runtime_.weights_changed(Runtime::Forms::kFresh);
}

std::string Step::find_non_finite(std::span<const MicroBatch> micro_batches,
                                  std::int64_t target_count) {
  // Blocks are done from the last to the first, and the first of the model is named.
  std::string tensor;
  forward_backward_here(micro_batches, target_count, [&](int block) {
    const std::string name = first_non_finite_gradient(runtime_.context, runtime_.store, block);
    if (!name.empty()) tensor = name;
  });
  if (!tensor.empty()) return tensor;
  return std::isfinite(runtime_.stage.loss_sum()) ? "" : "loss";
}

}  // namespace trireme
