#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/exact_sum.h"
#include "checkpoint/async_writer.h"
#include "comm/communicator.h"
#include "model/stage.h"
#include "plan/expert_files.h"

namespace trireme {

/// What a rank, or several, say once a step, when they have their gradients; plain bytes on the
/// wire.
struct RankReport {
  std::array<std::int64_t, ExactSum::kWords> squares{};  ///< sum_of_squares of its gradients
  double loss_sum = 0;                                   ///< of its tokens, where it counts them
  double square_sum = 0;  ///< likewise, of squares of log-sum-exps, with a z-loss
  double micro_batch_square = 0, step_square = 0;  ///< NoiseSquares, with stability.noise_scale
  std::int64_t target_count = 0;                   ///< of a step to come, likewise
  std::int64_t stop_reason = 0;
  std::int64_t save_is_late = 0;  ///< rank 0's clock says that checkpoint.interval_minutes are over
  std::int64_t memory_bytes = 0;
  std::int64_t span_ns = 0, busy_ns = 0;  ///< of the pipeline's actions; the longest, the sum
  std::int64_t microjoules = 0;           ///< since the last report with any
  std::int64_t meters = 0;                ///< ranks that have read them now
  WriterStates writers;

  /// What higher ranks say.
  void add(const RankReport& higher);
};

/// The same of experts, by layer of the model.
struct ExpertReport {
  double aux_loss = 0, z_loss = 0;  ///< of all layers
  std::vector<double> load;         ///< most tokens of an expert / their mean; 0: no experts
  ExpertLoad tokens;                ///< of each expert; of all zeros where there are none
};

/// What all ranks know of a step then.
struct StepFacts {
  double norm = 0;  ///< of all gradients, before clipping; not finite where any element is not
  double loss_sum = 0, square_sum = 0;
  double micro_batch_square = 0, step_square = 0;
  std::int64_t target_count = 0;
  std::int64_t stop_reason = 0;  ///< the largest
  bool save_is_late = false;
  std::int64_t memory_bytes = 0;            ///< the largest
  double longest_span_ns = 0, busy_ns = 0;  ///< the mean
  std::optional<double> joules;             ///< where they were read
  std::optional<ExpertReport> experts;      ///< in a model with experts
};

/// The reports of all ranks as one, a combination a step: also with GPUs they go over MPI.
class StepReports {
 public:
  explicit StepReports(Communicator& replica) : replica_(replica) {}
  /// Once on each rank, then finish() once. Nobody waits for others before that.
  void start(const RankReport& mine, const Stage::ExpertTotals& experts = {});
  /// Waits for the reports of all ranks; the same on all.
  StepFacts finish();
  /// Of all ranks, since finish().
  [[nodiscard]] const RankReport& all() const { return report_; }

 private:
  void start_experts(const Stage::ExpertTotals& mine);
  [[nodiscard]] ExpertReport finish_experts();

  Communicator& replica_;
  RankReport report_;
  Pending pending_;
  // Of experts: the losses, then each layer's load.
  std::vector<double> experts_;
  std::size_t layers_ = 0;
  Pending experts_pending_;
};

}  // namespace trireme
