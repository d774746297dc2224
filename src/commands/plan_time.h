#pragma once
// What `train plan --cluster` adds: predicted seconds, money and energy, each with its assumptions.

#include <string>
#include <vector>

#include "config/run_config.h"
#include "plan/resolve.h"
#include "plan/run_cost.h"
#include "plan/step_time.h"

namespace trireme {

struct PlannedTime {
  PredictedStep step;  ///< of the largest batch
  RunLength length;
  RunCost cost;
  std::int64_t steps = 0, checkpoints = 0;
  double tokens_per_second = 0, mfu = 0, peak_tflops = 0, flops = 0;
};

/// The cluster of a file or a name, and what a config leaves open taken from it: run.device.
Cluster take_cluster(const std::string& path_or_name, RunConfig& config,
                     std::vector<Problem>& problems);

/// Of a run that resolves; `flops_per_token` as the plan counts them.
PlannedTime plan_time(const RunConfig& config, const ResolvedRun& run, const Cluster& cluster,
                      std::int64_t flops_per_token);

/// {step_seconds, compute, host, exposed {axis: seconds}, hidden, bubble, optimizer,
/// tokens_per_second, mfu}
Json time_json(const PlannedTime& planned);
/// {tokens, steps, hours, device_hours, flops, cost, kwh, storage_bytes, ...}; null where no price
/// or power is given.
Json run_json(const PlannedTime& planned);
Json cluster_json(const Cluster& cluster);
std::string time_text(const PlannedTime& planned, const Cluster& cluster);

}  // namespace trireme
