#include "train/run_prediction.h"

#include "base/error.h"
#include "plan/mean_step.h"
#include "plan/run_cost.h"
#include "train/device_choice.h"

namespace trireme {

std::optional<Cluster> cluster_of(const RunConfig& config, std::vector<Problem>& problems,
                                  std::vector<std::string>& notes) {
  if (!config.log.cluster) return std::nullopt;
  std::vector<Problem> faults;
  Cluster cluster;
  try {
    cluster = read_cluster(*config.log.cluster, faults);
  } catch (const Error& error) {
    faults.push_back(problem_of(error, "log.cluster"));
  }
  const bool cpu = device_kind(config.run.device) == DeviceKind::kCpu;
  const bool other = faults.empty() && cpu != (cluster.device.kind == DeviceKind::kCpu);
  if (other && config.run.device == DeviceChoice::kAuto) {
    notes.push_back(
        fmt::format("log.cluster: {} has other devices than this machine, so nothing is predicted",
                    cluster.name));
    return std::nullopt;
  }
  if (other) {
    faults.push_back({"log.cluster", Json(*config.log.cluster).dump(),
                      fmt::format("a cluster of {}", cpu ? "CPUs" : "GPUs"), "",
                      fmt::format("{} has other devices than this run", cluster.name)});
  }
  for (Problem& fault : faults) {
    if (fault.path == "--cluster") fault.path = "log.cluster";
    problems.push_back(std::move(fault));
  }
  if (!faults.empty()) return std::nullopt;
  return cluster;
}

PredictedTime predict_time(const RunConfig& config, const ResolvedRun& run,
                           const Cluster& cluster) {
  const PredictedStep largest = predict_step(config.model, step_layout(config, run), cluster);
  const PredictedStep step = predict_mean_step(largest, config, run, cluster);
  PredictedTime predicted;
  predicted.cluster = cluster.name;
  predicted.step_seconds = step.seconds;
  predicted.time.forward_backward = step.compute + step.host;
  for (const Axis axis : kTrafficAxes) {
    const double exposed = step.exposed[axis] + (axis == Axis::kPipeline ? step.bubble : 0);
    if (exposed > 0) predicted.time.communication_exposed.emplace_back(name_of(axis), exposed);
  }
  predicted.time.optimizer = step.optimizer;
  predicted.watts = watts_of(run.mesh.size(), 1 - step.bubble / step.seconds, cluster);
  predicted.device_hour_price = cluster.price.device_hour;
  predicted.kwh_price = cluster.price.kwh;
  return predicted;
}

}  // namespace trireme
