#pragma once
// The tables of a cluster file are measured op by op, over and over the same operands, which caches
// then hold. In a step an op meets operands of others, and others' of its threads: what it takes
// there beside what the tables say of the same step lengthens them.

#include <span>

#include "base/op_trace.h"
#include "config/model_config.h"
#include "plan/cluster_file.h"
#include "plan/step_layout.h"

namespace trireme {

/// Of a rank's step: the ops of forward and backward by what a prediction takes them for, and the
/// update's. Bytes are of
/// one pass and of the update.
struct OpSeconds {
  double products = 0, attention = 0, passes = 0, update = 0;
  double pass_bytes = 0;    ///< where measured
  double update_bytes = 0;  ///< where predicted
};

/// Of all ops in the table.
OpSeconds op_seconds(std::span<const OpTotal> totals);

/// What the tables and rates of `cluster` say of the same. Of a mesh without a pipeline, whose
/// ranks all do the same.
OpSeconds predicted_op_seconds(const ModelConfig& model, const StepLayout& layout,
                               const Cluster& cluster);

/// Lengthens (or shortens) gemm, memory and efficiency.attention until a prediction of the step
/// that was measured is the measurement; memory between the sizes of a pass and of the update by
/// the logarithm. A kind of which either has nothing stays as it is.
void calibrate(Cluster& cluster, const OpSeconds& predicted, const OpSeconds& measured);

}  // namespace trireme
