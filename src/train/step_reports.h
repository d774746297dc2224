#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/exact_sum.h"
#include "checkpoint/async_writer.h"
#include "comm/communicator.h"

namespace trireme {

/// What each rank sends the others once a step, when it has its gradients; plain bytes on the wire.
struct RankReport {
  std::array<std::int64_t, ExactSum::kWords> squares{};  ///< sum_of_squares of its gradients
  double loss_sum = 0;                                   ///< of its tokens, where it counts them
  std::int64_t target_count = 0;                         ///< of a step to come, likewise
  std::int64_t stop_reason = 0;
  std::int64_t save_is_late = 0;  ///< rank 0's clock says that checkpoint.interval_minutes are over
  std::int64_t memory_bytes = 0;
  std::int64_t span_ns = 0, busy_ns = 0;  ///< of the pipeline's actions
  WriterState writer = WriterState::kIdle;
};

/// What all ranks know of a step then.
struct StepFacts {
  double norm = 0;  ///< of all gradients, before clipping; not finite where any element is not
  double loss_sum = 0;
  std::int64_t target_count = 0;
  std::int64_t stop_reason = 0;  ///< the largest
  bool save_is_late = false;
  std::int64_t memory_bytes = 0;            ///< the largest
  double longest_span_ns = 0, busy_ns = 0;  ///< the mean
};

/// The reports of all ranks, one exchange a step.
class StepReports {
 public:
  /// Beside: on a channel of its own, so that senders go on. Also with GPUs reports go over MPI.
  enum class Exchange : std::uint8_t { kBlocking, kBeside };
  /// Collective.
  StepReports(Communicator& replica, Exchange exchange);
  /// Once on each rank, then finish() once.
  void start(const RankReport& mine);
  /// Waits for the reports of all ranks; the same on all. Sums are in rank order.
  StepFacts finish();
  /// Of each rank, since finish().
  [[nodiscard]] std::span<const RankReport> all() const { return reports_; }

 private:
  Communicator& replica_;
  std::vector<RankReport> reports_;
  std::unique_ptr<Communicator> beside_;
  Pending pending_;
};

}  // namespace trireme
