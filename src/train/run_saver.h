#pragma once
// The checkpoints of a run: when one is due, the save that is under way, and which is the best.

#include <chrono>
#include <optional>
#include <span>

#include "checkpoint/async_writer.h"
#include "train/runtime.h"
#include "train/start_point.h"
#include "train/step_reports.h"
#include "train/trainer_inputs.h"

namespace trireme {

/// What of a checkpoint stays the same over the run; with the files that it keeps on rank 0.
/// `resumed`: the checkpoint that the run goes on from, "" where there is none. Collective.
SaveRequest save_request(const PreparedRun& prepared, const std::filesystem::path& resumed,
                         Communicator& replica);

class RunSaver {
 public:
  /// Takes the memory that saves are staged in. References must outlive this.
  RunSaver(Runtime& runtime, const TrainerInputs& inputs, RunProgress& progress);
  ~RunSaver();
  RunSaver(const RunSaver&) = delete;
  RunSaver& operator=(const RunSaver&) = delete;

  /// What this rank reports to the others of saving.
  void report(RankReport& mine) const;
  /// What all ranks' reports of the last step say of the save under way.
  void advance(const RankReport& reports);
  // Behind a step. `loss` decides what is best, where an evaluation behind this step has found it.
  enum class Kind : std::uint8_t { kInterval, kBest, kLast };
  /// Begins a save and, where it is the run's last or the config says so, waits for its end. A step
  /// that is saved already is saved again for the sake of `loss` alone.
  void save(Kind kind, std::optional<double> loss);
  /// What the config asks for behind an ordinary step.
  void save_if_due(bool late, std::optional<double> loss);
  /// Waits for the save under way, where there is one.
  void finish();
  /// The step whose save was begun last; -1: none.
  [[nodiscard]] std::int64_t begun_step() const { return begun_step_; }
  [[nodiscard]] std::int64_t failed_saves() const { return failed_saves_; }
  [[nodiscard]] bool last_failed() const { return last_failed_; }

 private:
  using Clock = std::chrono::steady_clock;
  [[nodiscard]] bool is_best(std::optional<double> loss) const;
  void wait();
  void end(const SaveResult& result);

  Runtime& runtime_;
  const TrainerInputs& inputs_;
  RunProgress& progress_;
  AsyncWriter writer_;
  std::int64_t begun_step_;             // of the last save; -1: none
  std::optional<BestLoss::Kept> kept_;  // by the save under way, once it is done
  std::int64_t failed_saves_ = 0;
  double stall_seconds_ = 0;  // so far, of the save under way
  bool last_failed_ = false;
  Clock::time_point begun_ = Clock::now();  // the last save, or the run
};

}  // namespace trireme
