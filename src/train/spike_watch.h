#pragma once
// Whether a step's loss or gradient norm is a spike (stability.skip_spikes): OLMo-core's
// SkipStepOptimizer, in double. Saved with the run's progress.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "config/run_config.h"

namespace trireme {

/// A step is a spike where its loss or its norm, x, has
///
///   x - mean > sigma · std   of the last `window` steps before it, std that of a sample (n - 1),
///
/// once it is at least the window/2-th that is known, the third at least. Every finite step becomes
/// known, spikes too, so that a level that stays is none for long; others do not.
class SpikeWatch {
 public:
  SpikeWatch() = default;
  explicit SpikeWatch(const std::optional<SpikeRule>& rule) : rule_(rule) {}
  /// As a checkpoint's scalars have it: the newest of those that it knows; none where it has none.
  SpikeWatch(const std::optional<SpikeRule>& rule, const Json& scalars);

  /// kLossSpike or kNormSpike (telemetry/metrics_lines.h); empty where it is none. Both finite.
  [[nodiscard]] std::string_view spike_of(double loss, double norm) const;
  /// A step is over. Without a rule, or where one is not finite, nothing.
  void add(double loss, double norm);
  /// What a checkpoint has; null without a rule.
  [[nodiscard]] Json json() const;

 private:
  [[nodiscard]] bool stands_out(const std::vector<double>& known, double latest) const;

  std::optional<SpikeRule> rule_;
  std::vector<double> losses_, norms_;  // of the last window of steps, oldest first
};

}  // namespace trireme
