#include "telemetry/run_history.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "telemetry/metrics_file.h"

namespace trireme {

namespace {

double real_or_nan(const Json& line, std::string_view key) {
  const Json* value = line.find(key);
  return value != nullptr && value->is_number() ? value->as_double()
                                                : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

std::optional<double> last_loss(const std::vector<LossPoint>& points) {
  for (auto point = points.rbegin(); point != points.rend(); ++point) {
    if (std::isfinite(point->loss)) return point->loss;
  }
  return std::nullopt;
}

void RunHistory::refresh() {
  if (std::filesystem::file_size(path_) < offset_) *this = RunHistory(path_);
  offset_ = for_each_metrics_line(path_, offset_,
                                  [this](std::string_view, const Json& line) { add(line); });
}

void RunHistory::add(const Json& line) {
  figures_.add(line);
  const Json* kind = line.find("kind");
  const Json* step = line.find("step");
  if (kind == nullptr || !kind->is_string() || step == nullptr || !step->is_integer()) return;
  const std::int64_t number = step->as_integer();
  if (kind->as_string() == "step") {
    if (!steps_.empty() && number <= steps_.back()) return;
    const double tokens = real_or_nan(line, "consumed_tokens");
    if (steps_.empty() && number > 1 && tokens > 0)
      begin_ = tokens - tokens / static_cast<double>(number);
    steps_.push_back(number);
    training_.push_back({tokens, real_or_nan(line, "loss")});
  } else if (kind->as_string() == "evaluation") {
    const Json* name = line.find("name");
    evaluations_.push_back({number, name != nullptr && name->is_string() ? name->as_string() : "",
                            real_or_nan(line, "loss")});
  } else if (kind->as_string() == "resume") {
    restarts_.push_back(number);
  } else if (kind->as_string() == "skip") {
    skips_.push_back(number);
  }
}

double RunHistory::tokens_at(std::int64_t step) const {
  const auto after = std::upper_bound(steps_.begin(), steps_.end(), step);
  if (after == steps_.begin()) return begin_;
  const double tokens = training_[static_cast<std::size_t>(after - steps_.begin()) - 1].tokens;
  return tokens >= 0 ? tokens : 0;
}

LossCurves RunHistory::curves() const {
  LossCurves curves;
  curves.begin = begin_;
  for (const LossPoint& point : training_) {
    if (point.tokens >= 0) curves.training.push_back(point);
  }
  for (const Evaluation& evaluation : evaluations_) {
    auto curve =
        std::find_if(curves.validation.begin(), curves.validation.end(),
                     [&](const ValidationCurve& known) { return known.name == evaluation.name; });
    if (curve == curves.validation.end())
      curve = curves.validation.insert(curve, ValidationCurve{evaluation.name, {}});
    curve->points.push_back({tokens_at(evaluation.step), evaluation.loss});
  }
  for (const std::int64_t step : restarts_) curves.restarts.push_back(tokens_at(step));
  for (const std::int64_t step : skips_) curves.skips.push_back(tokens_at(step));
  return curves;
}

}  // namespace trireme
