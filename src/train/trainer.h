#pragma once
// The training loop: data, forward and backward, sum over ranks, norm, update; evaluation, saving
// and stopping at step boundaries, decided by all ranks together.
//
// A step is settled when all ranks' reports of it are here: only then are its norm and loss known.
// It is updated behind that; or, with parallel.speculative_step, before, as if there were nothing
// to clip, and the next step's passes run meanwhile (after optimizer post-validation in Qi et al.
// 2023, "Zero Bubble Pipeline Parallelism"). Where the norm says otherwise the update is taken
// back, those passes are of no use, and the step is computed again: the same bits either way. One
// step at most is updated and not settled. A step runs ahead where the one before it was below the
// clip, so that a run which clips all the time loses nothing; the first of a process never does,
// nor what something stands still behind. What is saved is settled.

#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "checkpoint/async_writer.h"
#include "dataset/loader.h"
#include "train/best_loss.h"
#include "train/evaluator.h"
#include "train/reporter.h"
#include "train/run_end.h"
#include "train/step.h"
#include "train/step_reports.h"
#include "train/stopping.h"
#include "train/trace_steps.h"

namespace trireme {

class Samples;
class Watchdog;

/// Where the loop stands; saved and restored.
struct RunProgress {
  std::int64_t step = 0;  ///< updates done, skipped ones included
  std::int64_t consumed_samples = 0;
  std::int64_t skipped_in_a_row = 0;
  BestLoss best;
};

/// What the loop is given besides the runtime.
struct TrainerInputs {
  std::int64_t steps = 0;         ///< of the whole run
  std::int64_t global_batch = 1;  ///< samples of a step
  std::int64_t sequence_length = 1;
  std::int64_t flops_per_token = 0;
  std::optional<double> peak_tflops;  ///< of all ranks together
  SaveRequest save;                   ///< everything but step, position and state
  std::int64_t staging_bytes = 0;     ///< for saves, at most; 0: as much as they need
  std::function<Json(const RunProgress&, std::int64_t applied_updates)>
      scalars;  ///< saved beside the tensors
  Loader* loader = nullptr;
  std::span<const ValidationSet> validation;  ///< none: nothing is evaluated
  Samples* samples = nullptr;                 ///< null: none
  Reporter* reporter = nullptr;               ///< on rank 0
  Watchdog* watchdog = nullptr;               ///< null: none
};

class Trainer {
 public:
  /// A step whose loss or gradient is not finite is skipped; so many in a row end the run.
  static constexpr std::int64_t kSkipsMax = 10;

  Trainer(Runtime& runtime, TrainerInputs inputs, RunProgress progress);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  /// To the end of the run or a reason to stop. Throws DivergedError, and DataError where the last
  /// save failed.
  RunEnd run();

 private:
  /// A step that is not settled: its data, and the targets of its global batch.
  struct Unsettled {
    StepBatch batch;
    std::int64_t target_count = 0;
  };

  RunEnd loop();
  /// Targets of the first steps.
  void look_ahead();
  /// The step that is settled next.
  [[nodiscard]] std::int64_t next_step() const { return progress_.step + 1; }
  [[nodiscard]] Unsettled& at(std::int64_t step) {
    return steps_[static_cast<std::size_t>(step) % steps_.size()];
  }
  /// Of this rank, where it counts them; 0 behind the end of the run.
  [[nodiscard]] std::int64_t targets_of(std::int64_t step);
  /// Forward and backward of the step behind those that are updated.
  void pass();

  // Of step next_step(), once it has its gradients:
  void tell();
  /// Waits for what the others have told.
  void learn();
  [[nodiscard]] bool may_run_ahead() const;
  /// Updates before it is settled.
  void run_ahead();
  /// Takes that back.
  void go_back();
  /// Once it is settled.
  void update_or_skip();
  /// It is updated, or skipped, and settled. What ends the run.
  std::optional<RunEnd> end_step();

  /// What is done where nothing is under way but, perhaps, the next step's gradients.
  std::optional<RunEnd> stand_behind_step();
  void report_step();
  [[nodiscard]] double learning_rate_of_step() const;
  /// Adds what has passed since the last call.
  void take_times();
  SkipLine find_skip();
  void evaluate();
  /// What an evaluation found, for keep_best and stop_after.
  void take_loss(std::span<const SetLoss> losses);
  /// The last evaluation was of this step, and better than what checkpoints/best stands for.
  [[nodiscard]] bool best_is_new() const;
  /// So many evaluations in a row were no better.
  [[nodiscard]] bool stops_early() const;
  /// Begins a save and, where it is the run's last or the config says so, waits for its end.
  enum class SaveKind : std::uint8_t { kInterval, kBest, kLast };
  void save(SaveKind kind);
  /// Learns from the last step's reports how far the save under way is.
  void advance_save();
  void finish_save();
  void finish_save_under_way();
  void end_save(const SaveResult& result);
  [[nodiscard]] bool save_due() const;
  [[nodiscard]] bool evaluates_behind(std::int64_t step) const;
  [[nodiscard]] bool finished() const { return progress_.step >= inputs_.steps; }
  void add_pipeline_times();
  void write_end(EndReason reason);
  /// The end line, and the error of a last save that failed.
  RunEnd end(EndReason reason);

  Runtime& runtime_;
  TrainerInputs inputs_;
  RunProgress progress_;
  Step step_;
  TraceSteps trace_steps_;
  Stopping stopping_;
  const int lookahead_;  // reports tell the targets of so many steps on
  std::array<Unsettled, 4> steps_;
  std::int64_t handed_out_ = 0;  // the last step that the loader has
  double loss_sum_ = 0;          // of this rank's last pass
  StepReports reports_;
  StepFacts facts_;               // of the step that is settled next, or was last
  StepLine line_;                 // likewise
  bool nothing_clipped_ = false;  // likewise; and it is finite
  bool ahead_ = false;            // next_step() is updated
  std::int64_t undone_steps_ = 0;
  std::optional<SkipLine> skip_;
  // Over the steps since the first: the longest rank's span of each, and what a rank is busy in it.
  double pipeline_span_ns_ = 0, pipeline_busy_ns_ = 0;
  bool first_step_ = true;
  ByAxis exposed_;                               // up to the last take_times()
  std::chrono::steady_clock::time_point taken_;  // likewise
  AsyncWriter writer_;
  std::int64_t begun_save_ = -1;  // step
  /// What the last evaluation found, until a save tells of it.
  std::optional<double> unsaved_loss_;
  std::optional<BestLoss::Kept> kept_;  // by the save under way, once it is done
  std::int64_t failed_saves_ = 0;
  double stall_seconds_ = 0;  // so far, of the save under way
  bool last_save_failed_ = false, ended_ = false;
  std::chrono::steady_clock::time_point last_save_;
};

}  // namespace trireme
