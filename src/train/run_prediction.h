#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/problem.h"
#include "plan/cluster_file.h"
#include "plan/resolve.h"
#include "telemetry/metrics_lines.h"

namespace trireme {

/// The cluster of log.cluster; nothing where there is none, or it has faults, which go to
/// `problems`. Other devices than run.device names are one; where that is left open (a config is
/// looked at on another machine) nothing is predicted, which `notes` says.
std::optional<Cluster> cluster_of(const RunConfig& config, std::vector<Problem>& problems,
                                  std::vector<std::string>& notes);

/// A mean step of a run that resolves.
PredictedTime predict_time(const RunConfig& config, const ResolvedRun& run, const Cluster& cluster);

}  // namespace trireme
