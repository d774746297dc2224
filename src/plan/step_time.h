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

PredictedStep predict_step(const ModelConfig& model, const StepLayout& layout,
                           const Cluster& cluster);

}  // namespace trireme
