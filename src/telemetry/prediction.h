#pragma once
// What a run was said to take, beside what it took.

#include <optional>
#include <string>

#include "telemetry/metrics_lines.h"

namespace trireme {

inline constexpr double kJoulesPerKwh = 3.6e6;

/// Means over steps; the first that is added, which makes and loads things, is left out.
class StepMeans {
 public:
  void add(const StepLine& line);
  [[nodiscard]] double step_seconds() const { return seconds_ / steps_; }
  [[nodiscard]] StepTime time() const;
  /// Steps that count.
  [[nodiscard]] double steps() const { return steps_; }
  /// Of all steps; empty where no line had any.
  [[nodiscard]] std::optional<double> joules() const { return joules_; }

 private:
  bool first_ = true;
  double steps_ = 0, seconds_ = 0;
  StepTime sum_;
  std::optional<double> joules_;
};

/// "a step took 0.1234 s, 0.1180 s were predicted (here: -4.4 %)" and a line for each part that was
/// measured or predicted to be a hundredth of a step. "" before the second step.
std::string prediction_text(const PredictedTime& predicted, const StepMeans& measured);

/// "energy: 0.0123 kWh measured, 0.0140 kWh predicted": the latter where the cluster has watts, of
/// as many steps. "" where neither is known.
std::string energy_text(const std::optional<PredictedTime>& predicted, const StepMeans& measured);

}  // namespace trireme
