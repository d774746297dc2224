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
/// update's. Bytes are of one pass; where predicted, of the products' operands and of the update.
struct OpSeconds {
  double products = 0, attention = 0, passes = 0, update = 0;
  double pass_bytes = 0, product_bytes = 0, update_bytes = 0;

  [[nodiscard]] double total() const { return products + attention + passes + update; }
};

/// Of all ops in the table.
OpSeconds op_seconds(std::span<const OpTotal> totals);

/// What the tables and rates of `cluster` say of the same. Of a mesh without a pipeline, whose
/// ranks all do the same.
OpSeconds predicted_op_seconds(const ModelConfig& model, const StepLayout& layout,
                               const Cluster& cluster);

/// Lengthens (or shortens) gemm, memory and efficiency.attention until a prediction of the step
/// that was measured is the measurement; memory between the sizes of a pass and of the update by
/// the logarithm. Longer products become so by the bytes of their operands
/// (cold_bytes_per_second): of fewer rows they are more. A kind of which either has nothing stays
/// as it is.
void calibrate(Cluster& cluster, const OpSeconds& predicted, const OpSeconds& measured);

/// `measured`, where ranks share cores: while one computes another waits, by the kernel's choice
/// within its ops or between them. `unexplained` seconds of the step were such waits as far as
/// `sharers` of a core can make ops longer.
OpSeconds among_sharers(const OpSeconds& measured, double sharers, double unexplained);

}  // namespace trireme
