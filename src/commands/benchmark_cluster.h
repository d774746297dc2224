#pragma once
// `train benchmark --write-cluster FILE`: this machine as `train plan --cluster FILE` reads it.

#include <string>

#include "plan/cluster_file.h"
#include "plan/step_cost.h"
#include "train/prepare.h"
#include "train/runtime.h"

namespace trireme {

/// ConfigError where FILE exists, DataError where it has no folder.
void check_cluster_file(const std::string& path);

/// Products, passes, attention and links, each with its source; what could not be measured says so
/// there. Memory of its own: that of the largest product and pass. Collective; the same on every
/// rank.
Cluster measure_cluster(Runtime& runtime, const PreparedRun& prepared);

/// Host time of a CPU's rank: what lies between the ops of a step in which it passes so many layers
/// (each once a micro-batch).
void add_host_times(Cluster& cluster, const StepCost& cost, double layer_passes);

}  // namespace trireme
