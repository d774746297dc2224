#pragma once
// `train benchmark --write-cluster FILE`: this machine as `train plan --cluster FILE` reads it.

#include <string>

#include "plan/cluster_file.h"
#include "plan/op_calibration.h"
#include "train/prepare.h"
#include "train/runtime.h"

namespace trireme {

/// ConfigError where FILE exists, DataError where it has no folder.
void check_cluster_file(const std::string& path);

/// Of a rank's step: its ops, seconds that no op takes in forward and backward together, those
/// that it waits for data, and all.
struct StepSample {
  OpSeconds ops;
  double between_ops = 0, data = 0, seconds = 0;
};

/// Products, passes, attention and links, each with its source; what could not be measured says so
/// there. On a CPU the ops take what they do in `step` (calibrate), and what lies between them is
/// shared out among layers, forward and backward alike.
/// Memory of its own: that of the largest product and pass. Collective; the same on every rank.
Cluster measure_cluster(Runtime& runtime, const PreparedRun& prepared, const StepSample& step);

}  // namespace trireme
