#include "telemetry/run_figures.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/human_format.h"
#include "telemetry/prediction.h"

namespace trireme {

namespace {

constexpr double kSecondsPerHour = 3600;

std::optional<double> real(const Json* line, std::string_view key) {
  const Json* value = line == nullptr ? nullptr : line->find(key);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  return value->as_double();
}

/// Of seconds: never negative, nor without end.
double seconds(const Json* line, std::string_view key) {
  const double value = real(line, key).value_or(0);
  return std::isfinite(value) && value > 0 ? value : 0;
}

std::string text(const Json& line, std::string_view key) {
  const Json* value = line.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}

void add_to(std::vector<std::pair<std::string, double>>& parts, std::string_view name,
            double value) {
  const auto found = std::find_if(parts.begin(), parts.end(),
                                  [&](const auto& part) { return part.first == name; });
  if (found != parts.end()) {
    found->second += value;
  } else if (value > 0) {
    parts.emplace_back(name, value);
  }
}

double exposed_seconds(const Json& line) {
  const Json* time = line.find("time");
  const Json* axes = time == nullptr ? nullptr : time->find("communication_exposed");
  double sum = 0;
  if (axes == nullptr || !axes->is_object()) return sum;
  for (const auto& [axis, value] : axes->as_object()) sum += seconds(axes, axis);
  return sum;
}

std::string skip_text(const Json& line) {
  const std::string tensor = text(line, "tensor");
  if (tensor.empty()) return text(line, "reason");
  return fmt::format("{} (first in {}, rank {:.0f})", text(line, "reason"), tensor,
                     real(&line, "rank").value_or(0));
}

}  // namespace

void FigureRange::add(double value) {
  if (!std::isfinite(value)) return;
  low = std::min(low, value);
  high = std::max(high, value);
  sum += value;
  ++count;
}

void FigureRange::add(const FigureRange& later) {
  low = std::min(low, later.low);
  high = std::max(high, later.high);
  sum += later.sum;
  count += later.count;
}

void RunFigures::add(const Json& line) {
  const std::string kind = text(line, "kind");
  if (kind == "start") return add_start(line);
  const Json* number = line.find("step");
  if (number == nullptr || !number->is_integer()) return;
  const std::int64_t step = number->as_integer();
  if (kind == "step") {
    if (step > totals_.steps) add_step(step, line);
  } else if (kind == "resume") {
    add_event(RunEventKind::kRestart, step, text(line, "path"));
  } else if (kind == "skip") {
    add_event(RunEventKind::kSkip, step, skip_text(line));
  } else if (kind == "checkpoint") {
    add_checkpoint(step, line);
  } else if (kind == "end") {
    end_reason_ = text(line, "reason");
    add_event(RunEventKind::kEnd, step, end_reason_);
  }
}

void RunFigures::add_start(const Json& line) {
  start_ = line;
  end_reason_.clear();
  world_ = std::max(1.0, real(&line, "world").value_or(1));
  const Json* predicted = line.find("predicted");
  const Json* price = predicted == nullptr ? nullptr : predicted->find("price");
  watts_ = real(predicted, "watts");
  device_hour_price_ = real(price, "device_hour");
  kwh_price_ = real(price, "kwh");
}

void RunFigures::add_step(std::int64_t step, const Json& line) {
  static constexpr std::pair<Figure, std::string_view> kKeys[] = {
      {Figure::kGradNorm, "grad_norm"},
      {Figure::kLearningRate, "lr"},
      {Figure::kStepSeconds, "step_seconds"},
      {Figure::kTokensPerSecond, "tokens_per_second"},
      {Figure::kMfu, "mfu"},
      {Figure::kMemoryBytes, "memory_bytes"}};
  StepBin mine;
  mine.steps = 1;
  mine.tokens = std::max(0.0, real(&line, "consumed_tokens").value_or(totals_.tokens));
  for (const auto& [figure, key] : kKeys) {
    if (const auto value = real(&line, key))
      mine.figures[static_cast<std::size_t>(figure)].add(*value);
  }
  if (line.find("time") != nullptr)
    mine.figures[static_cast<std::size_t>(Figure::kExposedSeconds)].add(exposed_seconds(line));
  totals_.steps = step;
  totals_.tokens = mine.tokens;
  add_times(line);
  last_step_ = mine;
  put_into_bin(mine);
}

void RunFigures::add_times(const Json& line) {
  const double step = seconds(&line, "step_seconds");
  totals_.step_seconds += step;
  totals_.device_seconds += step * world_;
  if (const auto joules = real(&line, "joules"))
    totals_.joules = totals_.joules.value_or(0) + *joules;
  if (watts_) totals_.predicted_joules = totals_.predicted_joules.value_or(0) + *watts_ * step;
  const Json* time = line.find("time");
  if (time == nullptr) return;
  add_to(totals_.parts, "forward and backward", seconds(time, "forward_backward"));
  const Json* axes = time->find("communication_exposed");
  if (axes != nullptr && axes->is_object()) {
    for (const auto& [axis, value] : axes->as_object())
      add_to(totals_.parts, "waiting, " + axis, seconds(axes, axis));
  }
  add_to(totals_.parts, "waiting for data", seconds(time, "data_wait"));
  add_to(totals_.parts, "optimizer", seconds(time, "optimizer"));
}

void RunFigures::add_checkpoint(std::int64_t step, const Json& line) {
  const double stall = seconds(&line, "stall_seconds");
  totals_.stall_seconds += stall;
  totals_.device_seconds += stall * world_;
  if (const std::string error = text(line, "error"); !error.empty())
    return add_event(RunEventKind::kFailedSave, step, error);
  const Json* bytes = line.find("bytes");
  add_event(
      RunEventKind::kSave, step,
      fmt::format("{} in {}, training waited {}",
                  format_bytes(bytes != nullptr && bytes->is_integer() ? bytes->as_integer() : 0),
                  format_duration(seconds(&line, "save_seconds")), format_duration(stall)));
}

void RunFigures::add_event(RunEventKind kind, std::int64_t step, std::string text) {
  RunEvents& events = events_[static_cast<std::size_t>(kind)];
  ++events.count;
  events.last.push_back({step, std::move(text)});
  if (events.last.size() > kEventsMax) events.last.pop_front();
}

void RunFigures::put_into_bin(const StepBin& step) {
  const auto join = [](StepBin& bin, const StepBin& later) {
    bin.steps += later.steps;
    bin.tokens = later.tokens;
    for (std::size_t i = 0; i < kFigureCount; ++i) bin.figures[i].add(later.figures[i]);
  };
  if (!bins_.empty() && bins_.back().steps < steps_per_bin_) return join(bins_.back(), step);
  if (bins_.size() == kBinsMax) {
    for (std::size_t i = 0; i < kBinsMax / 2; ++i) {
      StepBin pair = bins_[2 * i];
      join(pair, bins_[2 * i + 1]);
      bins_[i] = pair;
    }
    bins_.resize(kBinsMax / 2);
    steps_per_bin_ *= 2;
  }
  bins_.push_back(step);
}

std::optional<double> RunFigures::cost() const {
  std::optional<double> cost;
  if (device_hour_price_) cost = totals_.device_seconds / kSecondsPerHour * *device_hour_price_;
  const std::optional<double>& joules = totals_.joules ? totals_.joules : totals_.predicted_joules;
  if (kwh_price_ && joules) cost = cost.value_or(0) + *joules / kJoulesPerKwh * *kwh_price_;
  return cost;
}

}  // namespace trireme
