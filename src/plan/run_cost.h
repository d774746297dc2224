#pragma once
// What a run costs: arithmetic on hours, watts and prices. No price is assumed.

#include <cstdint>
#include <optional>

#include "config/run_config.h"
#include "plan/cluster_file.h"

namespace trireme {

struct RunLength {
  double tokens = 0;
  double seconds = 0;
  std::int64_t devices = 1;
  double busy = 1;  ///< share of the time in which devices compute or transfer
  std::int64_t storage_bytes = 0;
};

struct RunCost {
  double hours = 0, device_hours = 0;
  std::optional<double> kwh;   ///< where the cluster file has watts
  std::optional<double> cost;  ///< of devices and energy, those that have a price
  std::optional<double> storage_month;
  double device_hours_per_1e9_tokens = 0;
  std::optional<double> kwh_per_1e9_tokens, cost_per_1e9_tokens;
};

/// A node draws node_idle_watts, each device device_watts more while it is busy; the site `pue` for
/// each of those. Nodes are counted whole.
RunCost cost_of(const RunLength& run, const Cluster& cluster);

/// Watts of all nodes of so many devices, at the site's meter; nothing where none are given.
std::optional<double> watts_of(std::int64_t devices, double busy, const Cluster& cluster);

/// Of a month, per 10^9 bytes.
double storage_cost(std::int64_t bytes, double price_gb_month);

/// Bytes of a state that has so many for each parameter.
std::int64_t state_bytes(std::int64_t parameters, std::int64_t bytes_each);

/// Checkpoints that lie there at the end of a run of so many steps.
std::int64_t checkpoints_kept(const RunConfig::Checkpoint& config, std::int64_t steps);

}  // namespace trireme
