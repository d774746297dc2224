#pragma once
// How long a step takes on a named cluster, before any rank exists: the passes over each stage
// (plan/layer_time.h), played by the pipeline's own simulator; sums and gathers of the data axis as
// far as they go on behind that; the update. A prediction: attention without masks of documents,
// experts evenly chosen, links that nobody else uses.

#include "plan/layer_time.h"

namespace trireme {

/// Of the rank that ends last. The numbers add up to `seconds` (but for `hidden` and `bytes`).
struct PredictedStep {
  double seconds = 0;
  double compute = 0, host = 0;
  AxisNumbers exposed;  ///< transfers that nothing hides; pipeline: what transfers add to waits
  double bubble = 0;    ///< waiting for other stages, beside those transfers
  double optimizer = 0;
  AxisNumbers hidden;  ///< transfers that go on behind work
  AxisNumbers bytes;   ///< sent
  int pipeline_rank = 0;
};

/// What is known of a schedule before there is one.
struct ScheduleOutline {
  std::vector<std::int32_t> placement;  ///< of the virtual stages that the layout names
  bool may_split = false;               ///< B and W may be two actions
};

/// No more than predict_step says of this layout with any such schedule (its own is not looked at).
/// With F, B, W of a virtual stage, m micro-batches, and of each rank the first stage that it has:
///   F of the stages before + m (F + B + W) of all of the rank's
///   F of the stages before + m (F + B) of the rank's + B of the stages before, where rank 0 ends
/// each with the transfers between ranks and the sums over data that nothing hides.
double least_step_seconds(const ModelConfig& model, const StepLayout& layout,
                          const ScheduleOutline& outline, const Cluster& cluster);

PredictedStep predict_step(const ModelConfig& model, const StepLayout& layout,
                           const Cluster& cluster);

}  // namespace trireme
