#include "telemetry/prediction.h"

#include <fmt/core.h>

#include <algorithm>

namespace trireme {

namespace {

/// What a part must have of a step to be shown.
constexpr double kShown = 0.01;

double& part_of(StepTime& time, const std::string& axis) {
  auto& parts = time.communication_exposed;
  const auto found = std::find_if(parts.begin(), parts.end(),
                                  [&](const auto& part) { return part.first == axis; });
  return found != parts.end() ? found->second : parts.emplace_back(axis, 0).second;
}

std::string row(const std::string& part, double measured, double predicted, double step) {
  if (std::max(measured, predicted) < kShown * step) return "";
  return fmt::format("\n  {:<20} {:.4g} s, predicted {:.4g} s", part, measured, predicted);
}

}  // namespace

void StepMeans::add(const StepLine& line) {
  if (line.joules) joules_ = joules_.value_or(0) + *line.joules;
  if (std::exchange(first_, false)) return;
  ++steps_;
  seconds_ += line.step_seconds;
  sum_.forward_backward += line.time.forward_backward;
  for (const auto& [axis, seconds] : line.time.communication_exposed)
    part_of(sum_, axis) += seconds;
  sum_.data_wait += line.time.data_wait;
  sum_.optimizer += line.time.optimizer;
}

StepTime StepMeans::time() const {
  StepTime mean = sum_;
  mean.forward_backward /= steps_;
  for (auto& [axis, seconds] : mean.communication_exposed) seconds /= steps_;
  mean.data_wait /= steps_;
  mean.optimizer /= steps_;
  return mean;
}

std::string prediction_text(const PredictedTime& predicted, const StepMeans& measured) {
  if (measured.steps() == 0) return "";
  const double step = measured.step_seconds();
  StepTime was = measured.time(), said = predicted.time;
  std::string text = fmt::format("a step took {:.4g} s, {:.4g} s were predicted ({}: {:+.1f} %)",
                                 step, predicted.step_seconds, predicted.cluster,
                                 100 * (predicted.step_seconds / step - 1));
  text += row("forward and backward", was.forward_backward, said.forward_backward, step);
  for (const auto& [axis, seconds] : said.communication_exposed) part_of(was, axis);
  for (const auto& [axis, seconds] : was.communication_exposed)
    text += row("waiting, " + axis, seconds, part_of(said, axis), step);
  text += row("waiting for data", was.data_wait, said.data_wait, step);
  return text + row("optimizer", was.optimizer, said.optimizer, step);
}

std::string energy_text(const std::optional<PredictedTime>& predicted, const StepMeans& measured) {
  std::string text;
  if (measured.joules())
    text = fmt::format("{:.4g} kWh measured", *measured.joules() / kJoulesPerKwh);
  if (predicted && predicted->watts && measured.steps() > 0) {
    // The first step counts too.
    const double joules = *predicted->watts * predicted->step_seconds * (measured.steps() + 1);
    text += fmt::format("{}{:.4g} kWh predicted", text.empty() ? "" : ", ", joules / kJoulesPerKwh);
  }
  return text.empty() ? "" : "energy: " + text;
}

}  // namespace trireme
