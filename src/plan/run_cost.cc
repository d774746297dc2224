#include "plan/run_cost.h"

#include <algorithm>

#include "base/math.h"

namespace trireme {

std::optional<double> watts_of(std::int64_t devices, double busy, const Cluster& cluster) {
  const Cluster::Power& power = cluster.power;
  if (!power.node_idle_watts && !power.device_watts) return {};
  const auto nodes = static_cast<double>(ceil_div(devices, cluster.devices_per_node));
  return power.pue * (nodes * power.node_idle_watts.value_or(0) +
                      static_cast<double>(devices) * busy * power.device_watts.value_or(0));
}

double storage_cost(std::int64_t bytes, double price_gb_month) {
  return static_cast<double>(bytes) / 1e9 * price_gb_month;
}

std::int64_t state_bytes(std::int64_t parameters, std::int64_t bytes_each) {
  return parameters * bytes_each;
}

std::int64_t checkpoints_kept(const RunConfig::Checkpoint& config, std::int64_t steps) {
  // One at the end in any case.
  const std::int64_t saved =
      config.interval_steps == 0
          ? 1
          : std::max<std::int64_t>(1, ceil_div(steps, config.interval_steps));
  if (config.keep_last == 0) return saved;
  const std::int64_t apart = config.keep_every_steps == 0 ? 0 : steps / config.keep_every_steps;
  return std::min(saved, config.keep_last + apart);
}

RunCost cost_of(const RunLength& run, const Cluster& cluster) {
  RunCost cost;
  cost.hours = run.seconds / 3600;
  cost.device_hours = cost.hours * static_cast<double>(run.devices);
  if (const auto watts = watts_of(run.devices, run.busy, cluster))
    cost.kwh = *watts * cost.hours / 1000;
  const Cluster::Price& price = cluster.price;
  if (price.device_hour) cost.cost = cost.device_hours * *price.device_hour;
  if (price.kwh && cost.kwh) cost.cost = cost.cost.value_or(0) + *cost.kwh * *price.kwh;
  if (price.storage_gb_month)
    cost.storage_month = storage_cost(run.storage_bytes, *price.storage_gb_month);
  const double billions = run.tokens / 1e9;
  if (billions <= 0) return cost;
  cost.device_hours_per_1e9_tokens = cost.device_hours / billions;
  if (cost.kwh) cost.kwh_per_1e9_tokens = *cost.kwh / billions;
  if (cost.cost) cost.cost_per_1e9_tokens = *cost.cost / billions;
  return cost;
}

}  // namespace trireme
