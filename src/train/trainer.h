#pragma once
// A run of training: its steps (step_loop.h), between them evaluation, saving and stopping.

#include <optional>

#include "device/energy.h"
#include "train/evaluator.h"
#include "train/expert_load_record.h"
#include "train/run_end.h"
#include "train/run_saver.h"
#include "train/step_loop.h"
#include "train/trace_steps.h"
#include "train/trainer_inputs.h"

namespace trireme {

class Trainer {
 public:
  /// A step whose loss or gradient is not finite is skipped; so many in a row end the run.
  static constexpr std::int64_t kSkipsMax = 10;

  Trainer(Runtime& runtime, TrainerInputs inputs, RunProgress progress);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  /// To the end of the run or a reason to stop. DataError where the last save failed.
  RunEnd run();

 private:
  RunEnd loop();
  /// Counts and reports the step; then what is done behind it. What ends the run.
  std::optional<RunEnd> end_step(const CommittedStep& step);
  std::optional<RunEnd> after_step(const StepFacts& facts);
  [[nodiscard]] bool stands_still_behind(std::int64_t step) const;
  [[nodiscard]] bool finished() const { return progress_.step >= inputs_.prepared.run.steps; }
  /// Joules of this rank, at each log interval and the last step.
  void report_energy(RankReport& mine);
  void measure_noise(const StepFacts& facts, std::int64_t samples);
  void report_step(const CommittedStep& step, std::int64_t samples);
  [[noreturn]] void end_diverged(const SkipLine& last);
  void write_end(EndReason reason);
  /// The end line, and the error of a last save that failed.
  RunEnd end(EndReason reason, std::int64_t signal = 0);

  Runtime& runtime_;
  const TrainerInputs inputs_;
  RunProgress progress_;
  const std::int64_t flops_per_token_;
  const std::optional<double> peak_tflops_;  // of one device
  TraceSteps trace_steps_;
  Stopping stopping_;
  EnergyMeter energy_;
  std::int64_t reports_ = 0;
  RunSaver saver_;
  RunEvaluation evaluation_;
  std::optional<ExpertLoadRecord> expert_load_;  // on rank 0, with experts
  StepLoop steps_;
  /// Over this process's steps behind the first: the longest rank's span, a mean rank's busy time.
  struct {
    bool first_step = true;
    double span_ns = 0, busy_ns = 0;
  } pipeline_;
  bool ended_ = false;
};

}  // namespace trireme
