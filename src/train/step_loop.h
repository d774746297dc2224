#pragma once
// The steps of training one after the other: data, forward and backward, sum over ranks, norm,
// update. What stands between them (evaluation, saving, stopping) is the caller's.
//
// A step is committed when all ranks' reports of it are here: only then are its norm and loss
// known. It is updated behind that; or, with parallel.speculative_step, before, as if there were
// nothing to clip, and the next step's forward and backward run meanwhile (after optimizer
// post-validation in Qi et al. 2023, "Zero Bubble Pipeline Parallelism"). Where the norm says
// otherwise the update is taken back, those gradients are of no use, and the step is computed
// again: the same bits either way. One step at most is updated and not committed. A step runs ahead
// where the one before it was below the clip, so that a run which always clips loses nothing; the
// first of a loop never does, nor the last, nor one behind which the caller stands still.

#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dataset/loader.h"
#include "telemetry/metrics_lines.h"
#include "train/spike_watch.h"
#include "train/step.h"
#include "train/step_reports.h"
#include "train/step_timer.h"

namespace trireme {

/// A step that is updated, or skipped, and committed.
struct CommittedStep {
  std::int64_t step = 0;
  double loss = 0;    ///< mean over the targets of the global batch
  double z_loss = 0;  ///< the same of stability.z_loss
  double lr = 0;
  StepFacts facts;
  StepTimes times;                 ///< of this rank
  std::optional<SkipLine> skip;    ///< why it was not updated
  std::vector<BlockNorms> blocks;  ///< with log.blocks, at each log interval and the last step
  /// What else is skipped, besides spikes.
  [[nodiscard]] bool finite() const { return std::isfinite(loss) && std::isfinite(facts.norm); }
};

/// What a loop is given besides runtime and data.
struct StepLoopInputs {
  std::int64_t first_sample = 0;  ///< consumed before
  std::int64_t committed = 0;     ///< steps before
  std::int64_t steps = 0;         ///< of the whole run
  /// Adds to what this rank reports of a step.
  std::function<void(RankReport&)> report;
  /// Whether the next step waits until this one is committed and handed out; the same on all ranks.
  std::function<bool(std::int64_t step)> stands_still_behind;
  /// Steps whose data are passed over: nothing is computed, loss and norm are NaN.
  StepRanges passed_over = {};
  /// Knows the steps committed so far, where spikes are skipped; must outlive the loop.
  const SpikeWatch* spikes = nullptr;
};

class StepLoop {
 public:
  /// Collective. References must outlive this.
  StepLoop(Runtime& runtime, Loader& loader, StepLoopInputs inputs);
  /// The next step, committed: memory then holds its state, maybe the next gradients. Collective.
  CommittedStep next();
  /// Of all ranks, of the step that was committed last.
  [[nodiscard]] const RankReport& reports() const { return reports_.all(); }
  /// Updates that were taken back so far.
  [[nodiscard]] std::int64_t undone_steps() const { return undone_steps_; }

 private:
  /// A step that is not committed: its data, and the targets of its global batch.
  struct Uncommitted {
    StepBatch batch;
    std::int64_t target_count = 0;
  };

  /// The step that is committed next.
  [[nodiscard]] std::int64_t next_step() const { return committed_ + 1; }
  [[nodiscard]] Uncommitted& at(std::int64_t step) {
    return steps_[static_cast<std::size_t>(step) % steps_.size()];
  }
  /// Targets of the first steps.
  void look_ahead();
  /// Of this rank; 0 behind the end of the run.
  [[nodiscard]] std::int64_t targets_of(std::int64_t step);
  [[nodiscard]] bool passes_over(std::int64_t step) const;
  /// The data of a step.
  Uncommitted& bring(std::int64_t step);
  /// Of the step behind those that are updated.
  void forward_backward();
  /// next_step(), without having its gradients.
  void pass_over();
  // Of next_step(), once it has its gradients:
  void send_report();
  void receive_reports();
  [[nodiscard]] bool may_run_ahead() const;
  void run_ahead();
  void take_back();
  void update_or_skip();
  CommittedStep commit();
  [[nodiscard]] double learning_rate_of_step() const;
  /// Whether the update of a step is looked at: it is then made when its norm is known.
  [[nodiscard]] bool is_measured(std::int64_t step) const;
  SkipLine find_skip();

  Runtime& runtime_;
  Loader& loader_;
  const StepLoopInputs inputs_;
  Step step_;
  StepTimer timer_;
  StepReports reports_;
  const int lookahead_;  // reports have the target count of so many steps on
  std::array<Uncommitted, 4> steps_;
  std::int64_t committed_, handed_out_;  // the last step that is, and that the loader has
  bool has_gradients_ = false;           // of the step behind those that are updated
  bool ahead_ = false;                   // next_step() is updated
  // Of this rank's last forward and backward.
  double loss_sum_ = 0, square_sum_ = 0, micro_batch_square_ = 0;
  CommittedStep now_;  // next_step(), so far
  // Of the step whose reports came last: why, finite, it is not updated (empty: it is); and whether
  // it is finite, no spike, and its norm within the limit.
  std::string_view spike_;
  bool nothing_clipped_ = false;
  std::int64_t undone_steps_ = 0;
};

}  // namespace trireme
