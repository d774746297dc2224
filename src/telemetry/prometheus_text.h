#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "telemetry/metrics_lines.h"

namespace trireme {

/// What a Prometheus is told of a run, as of now. Times are seconds since 1970.
struct PrometheusState {
  std::string run;  ///< run.directory: the label of all samples, so that runs of a host stay apart
  std::string version;
  std::int64_t world = 1, steps_planned = 0;
  bool running = true;
  double start_time = 0, last_step_time = 0, last_save_time = 0;
  std::optional<StepLine> step;
  std::map<std::string, EvaluationLine> evaluations;  ///< the last of each set
  std::int64_t last_saved_step = 0;
  // Of this start.
  std::int64_t skips = 0, saves = 0, failed_saves = 0;
  double step_seconds = 0, stall_seconds = 0;
  std::optional<double> joules;
};

/// Prometheus' text format 0.0.4: HELP and TYPE before each family; base units; counters, which a
/// restart may set back, end in _total. What is not known has no samples.
std::string prometheus_text(const PrometheusState& state);

/// Every text begins so, whereby a file is known as ours.
inline constexpr std::string_view kPrometheusBegin = "# HELP trireme_";

}  // namespace trireme
