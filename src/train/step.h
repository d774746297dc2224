#pragma once

#include <span>
#include <string>
#include <utility>

#include "train/runtime.h"
#include "train/step_graph.h"
#include "train/step_reports.h"

namespace trireme {

/// One optimizer step in its parts, as the trainer and the benchmark run them.
class Step {
 public:
  explicit Step(Runtime& runtime);

  /// Every micro-batch forward and backward, then the gradients' sum over ranks. All targets.
  void forward_backward(std::span<const MicroBatch> micro_batches, std::int64_t target_count);
  /// Nanoseconds since the last call that forward and backward waited for ranks in their spans.
  std::int64_t take_waits_in_passes_ns() { return std::exchange(waits_in_passes_ns_, 0); }
  /// Whether forward and backward are replayed from now on.
  [[nodiscard]] bool recorded() const { return graph_.recorded(); }
  /// Sum of this rank's token losses.
  [[nodiscard]] double loss_sum() const { return runtime_.stage.loss_sum(); }
  /// And of the squares of their log-sum-exps, with a z-loss.
  [[nodiscard]] double square_sum() const { return runtime_.stage.square_sum(); }
  /// This rank's part of the norm's square.
  ExactSum sum_of_squares();
  /// Clips by `norm` and updates every parameter; `experts`: what the experts of a model had to do;
  /// `meter` learns what the update does.
  void update(double lr, double norm, const ExpertReport* experts = nullptr,
              BlockMeter* meter = nullptr);
  /// Updates as if there were nothing to clip; then keep_update() ends the step, or take_back()
  /// makes that undone.
  void update_ahead(double lr);
  void keep_update();
  void take_back();

  /// After a step whose loss or gradient is not finite: recomputes this rank's part and names what
  /// is not finite in it: a parameter (its gradient), "loss", or "".
  std::string find_non_finite(std::span<const MicroBatch> micro_batches, std::int64_t target_count);

 private:
  /// Forward and backward of what the stage was given, without the sum over ranks.
  void pass();
  void reduce();
  /// A tied weight's gradients on two pipeline ranks add up before the sum over ranks, if kept.
  [[nodiscard]] bool tied_weight_first() const;

  Runtime& runtime_;
  StepGraph graph_;
  std::vector<std::int64_t> key_;  ///< of the step that graph_ is asked for
  ByAxis recorded_bytes_;          ///< that a replay sends
  std::int64_t waits_in_passes_ns_ = 0;
};

}  // namespace trireme
