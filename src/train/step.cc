#include "train/step.h"

#include <cmath>

namespace trireme {

namespace {

/// Not what the host takes part in: a check of collectives compares before each transfer; where
/// tokens travel to experts the host learns how many, and counts of an auxiliary loss are joined
/// there.
StepGraph::Mode graph_mode(const Runtime& runtime) {
  const RunConfig::Run& run = runtime.config.run;
  const bool host_counts = runtime.part.cut.expert.ranks() > 1 || runtime.stage.has_aux_loss();
  const bool on = run.cuda_graph != CudaGraph::kOff && !run.check_collectives && !host_counts;
  return on ? StepGraph::Mode::kAuto : StepGraph::Mode::kOff;
}

/// Waits within forward or backward: for other stages the executor waits between them.
std::int64_t in_passes(const ByAxis& waits_ns) {
  return waits_ns.total() - waits_ns[Axis::kPipeline];
}

}  // namespace

Step::Step(Runtime& runtime) : runtime_(runtime), graph_(runtime.context, graph_mode(runtime)) {}

void Step::pass() {
  const std::int64_t waited_ns = in_passes(runtime_.channels.exposed_ns());
  {
    const Span span(runtime_.trace, Phase::kOptimizer);
    runtime_.stage.rewind();
    if (runtime_.noise) runtime_.noise->clear();
  }
  runtime_.executor().run(runtime_.trace);
  waits_in_passes_ns_ += in_passes(runtime_.channels.exposed_ns()) - waited_ns;
}

bool Step::tied_weight_first() const {
  return runtime_.tied_weight && runtime_.part.store.accumulates_locally();
}

void Step::reduce() {
  const Span span(runtime_.trace, Phase::kCommunication);
  std::optional<TiedWeight>& tied = runtime_.tied_weight;
  if (tied_weight_first()) {
    tied->add();
    runtime_.reduction->start(tied->block());
  }
  runtime_.reduction->finish();
  if (tied && !tied_weight_first()) tied->add();
  if (runtime_.partial) runtime_.partial->sum();
  if (runtime_.same_heads) runtime_.same_heads->sum();
  if (runtime_.of_experts) runtime_.of_experts->sum();
}

void Step::forward_backward(std::span<const MicroBatch> micro_batches, std::int64_t target_count) {
  runtime_.stage.begin_step(micro_batches, target_count);
  // Whatever an evaluation has left whole, or transposed: every step that may be recorded does the
  // same.
  if (runtime_.context.on_gpu()) {
    if (runtime_.gather) runtime_.gather->weights_changed();
    runtime_.store.codes_changed();
  }
  runtime_.store.gradients().when_complete([&](int block) {
    if (!tied_weight_first() || block != runtime_.tied_weight->block())
      runtime_.reduction->start(block);
  });
  set_step_key(key_, runtime_.stage.batches_of_step());
  const ByAxis sent = runtime_.channels.sent_bytes();
  const StepGraph::Ran ran = graph_.run(key_, [&] {
    runtime_.reduction->begin_step();
    pass();
    reduce();
  });
  if (ran == StepGraph::Ran::kRecorded) recorded_bytes_ = runtime_.channels.sent_bytes() - sent;
  if (ran == StepGraph::Ran::kReplayed) runtime_.channels.replayed(recorded_bytes_);
  if (!runtime_.context.on_gpu()) return;
  // Transfers of a graph stand in the recorder together.
  FlightRecorder& recorder = runtime_.launch.flight_recorder();
  const bool transfers = ran != StepGraph::Ran::kPlain && runtime_.mesh.size() > 1;
  const std::int64_t sequence =
      transfers ? recorder.begin("replayed step", recorded_bytes_.total(), "all channels") : 0;
  // Kernels are launched ahead of time; their time is that of waiting for them.
  const Span span(runtime_.trace, Phase::kBackwardInput);
  runtime_.context.synchronize();
  if (transfers) recorder.end(sequence);
}

ExactSum Step::sum_of_squares() {
  const Span span(runtime_.trace, Phase::kOptimizer);
  return trireme::sum_of_squares(runtime_.context, runtime_.store);
}

void Step::update(double lr, double norm, const ExpertReport* experts, BlockMeter* meter) {
  const Span span(runtime_.trace, Phase::kOptimizer);
  const double clip = clip_coefficient(norm, runtime_.config.optimizer.clip_grad_norm);
  if (meter != nullptr) {
    runtime_.optimizer->step(runtime_.context, lr, clip, *meter);
  } else {
    runtime_.optimizer->step(runtime_.context, lr, clip);
  }
  runtime_.optimizer->average(runtime_.context);
  if (experts != nullptr && runtime_.router_bias)
    runtime_.router_bias->update(runtime_.context, experts->tokens);
  runtime_.weights_changed(Runtime::Copies::kFresh);
}

void Step::update_ahead(double lr) {
  const Span span(runtime_.trace, Phase::kOptimizer);
  runtime_.optimizer->step(runtime_.context, lr, 1, Optimizer::Undo::kPossible);
  runtime_.weights_changed(Runtime::Copies::kFresh);
}

void Step::keep_update() {
  const Span span(runtime_.trace, Phase::kOptimizer);
  runtime_.optimizer->average(runtime_.context);
}

void Step::take_back() {
  const Span span(runtime_.trace, Phase::kOptimizer);
  runtime_.optimizer->undo(runtime_.context);
  runtime_.weights_changed(Runtime::Copies::kStale);
}

std::string Step::find_non_finite(std::span<const MicroBatch> micro_batches,
                                  std::int64_t target_count) {
  // Blocks are done from the last to the first, and the first of the model is named.
  std::string tensor;
  runtime_.stage.begin_step(micro_batches, target_count);
  runtime_.store.gradients().when_complete([&](int block) {
    const std::string name = first_non_finite_gradient(runtime_.context, runtime_.store, block);
    if (!name.empty()) tensor = name;
  });
  pass();
  runtime_.store.gradients().when_complete({});
  if (!tensor.empty()) return tensor;
  return std::isfinite(runtime_.stage.loss_sum()) ? "" : "loss";
}

}  // namespace trireme
