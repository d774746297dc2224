#pragma once
// A config on a number of ranks as search compares it: what a step takes and what its ranks hold,
// both as `train plan` says them.

#include <optional>
#include <vector>

#include "plan/layout_choice.h"
#include "plan/memory.h"
#include "plan/step_time.h"

namespace trireme {

/// What all layouts that are compared have in common.
struct LayoutTask {
  RunConfig config;  ///< batch.global given; its device is the cluster's
  ResolveInput input;
  Cluster cluster;
  std::int64_t memory = 0;  ///< that a rank may use; 0: any
};

struct TimedLayout {
  LayoutChoice choice;
  MeshShape mesh;
  ResolvedBatch batch;
  std::optional<Fp8Precision> fp8 = {};
  DType compute = DType::kF32;
  PredictedStep step;
  RankMemory memory;           ///< of the rank that needs most
  std::optional<double> cost;  ///< of 10^9 tokens, where the cluster file has prices
  [[nodiscard]] std::int64_t bytes() const { return memory.total(); }
};

/// Of `config` as it stands on the task's ranks; nothing, and the faults, where `train` would
/// refuse it.
std::optional<TimedLayout> time_layout(const LayoutTask& task, const RunConfig& config,
                                       std::vector<Problem>& problems);

/// The same, but nothing without a fault where a rank needs more than `bytes_max`; then `missed`
/// is what one needs at least.
std::optional<TimedLayout> time_if_it_fits(const LayoutTask& task, const RunConfig& config,
                                           std::vector<Problem>& problems, std::int64_t& missed);

}  // namespace trireme
