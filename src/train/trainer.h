#pragma once
// The training loop: data, forward and backward, sum over ranks, norm, update; evaluation, saving
// and stopping at step boundaries, decided by all ranks together.

#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "checkpoint/async_writer.h"
#include "dataset/evaluation_batches.h"
#include "dataset/loader.h"
#include "train/reporter.h"
#include "train/step.h"
#include "train/stopping.h"
#include "train/trace_steps.h"

namespace trireme {

class Watchdog;

/// Where the loop stands; saved and restored.
struct Progress {
  std::int64_t step = 0;  ///< updates done, skipped ones included
  std::int64_t consumed_samples = 0;
  std::int64_t skipped_in_a_row = 0;
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
  std::function<Json(const Progress&, std::int64_t applied_updates)>
      scalars;  ///< saved beside the tensors
  Loader* loader = nullptr;
  EvaluationBatches* validation = nullptr;  ///< null: none
  Reporter* reporter = nullptr;             ///< on rank 0
  Watchdog* watchdog = nullptr;             ///< null: none
};

class Trainer {
 public:
  /// A step whose loss or gradient is not finite is skipped; so many in a row end the run.
  static constexpr std::int64_t kSkipsMax = 10;

  Trainer(Runtime& runtime, TrainerInputs inputs, Progress progress);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  /// To the end of the run or a reason to stop. Throws DivergedError, and DataError where the last
  /// save failed.
  ExitCode run();

 private:
  /// What each rank tells the others once a step; plain bytes on the wire.
  struct RankReport {
    std::int64_t next_target_count = 0;
    std::int64_t stop_reason = 0;
    std::int64_t memory_bytes = 0;
    std::int64_t span_ns = 0, busy_ns = 0;  ///< of the pipeline's actions
    WriterState writer = WriterState::kIdle;
  };

  ExitCode loop();
  void run_step();
  void exchange_reports();
  void report_step(double loss, double norm, double lr, double seconds);
  SkipLine find_skip(double loss, std::span<const MicroBatch> micro_batches);
  void evaluate();
  /// Begins a save and, where it is the run's last or the config says so, waits for its end.
  enum class SaveKind : std::uint8_t { kInterval, kLast };
  void save(SaveKind kind);
  /// Learns from the last step's reports how far the save under way is.
  void advance_save();
  void finish_save();
  void finish_save_under_way();
  void end_save(const SaveResult& result);
  [[nodiscard]] bool save_due();  // collective
  [[nodiscard]] bool finished() const { return progress_.step >= inputs_.steps; }
  void add_pipeline_times();
  void write_end(EndReason reason);
  /// The end line, and the error of a last save that failed.
  ExitCode end(EndReason reason, ExitCode code);
  StepTime take_step_time();

  Runtime& runtime_;
  TrainerInputs inputs_;
  Progress progress_;
  Step step_;
  TraceSteps trace_steps_;
  Stopping stopping_;
  StepBatch batch_;                // of the step that comes next
  std::int64_t target_count_ = 0;  // of its global batch
  Stopping::Reason stop_ = Stopping::Reason::kNone;
  std::int64_t memory_bytes_ = 0;
  // Over the steps since the first: the longest rank's span of each, and what a rank is busy in it.
  double pipeline_span_ns_ = 0, pipeline_busy_ns_ = 0;
  bool first_step_ = true;
  Channels::ByAxis exposed_;  // up to the step before
  std::vector<RankReport> reports_;
  AsyncWriter writer_;
  std::int64_t begun_save_ = -1, evaluated_step_ = -1;  // steps
  std::int64_t failed_saves_ = 0;
  double stall_seconds_ = 0;  // so far, of the save under way
  bool last_save_failed_ = false, ended_ = false;
  std::chrono::steady_clock::time_point last_save_;
};

}  // namespace trireme
