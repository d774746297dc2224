#include "telemetry/plot_axis.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace trireme {

namespace {

/// 1, 2, 2.5 or 5 times a power of ten, the first that cuts `range` into at most `count` pieces.
double round_step(double range, int count) {
  const double raw = range / count;
  const double decade = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * decade >= raw * (1 - 1e-9)) return factor * decade;
  }
  return 10 * decade;
}

/// Digits behind the point that tell multiples of `step` apart.
int decimals_of(double step) {
  const double magnitude = std::floor(std::log10(step) + 1e-9);
  const double leading = step / std::pow(10.0, magnitude);
  const int decimals = static_cast<int>(-magnitude) + (std::abs(leading - 2.5) < 1e-6 ? 1 : 0);
  return std::max(0, decimals);
}

std::string decimal_label(double value, double step, double largest) {
  if (decimals_of(step) <= 4 && largest < 1e6)
    return fmt::format("{:.{}f}", value, decimals_of(step));
  const double digits = largest > 0 ? std::log10(largest / step) : 0;
  return value == 0 ? "0"
                    : fmt::format("{:.{}e}", value,
                                  std::clamp(static_cast<int>(std::ceil(digits)), 0, 12));
}

std::string count_label(double value, double step, double largest) {
  double unit = 1;
  std::string_view letter;
  for (const std::string_view next : {"k", "M", "B", "T"}) {
    if (largest < unit * 1000) break;
    unit *= 1000;
    letter = next;
  }
  if (value == 0) return "0";
  return fmt::format("{:.{}f}{}", value / unit, decimals_of(step / unit), letter);
}

}  // namespace

PlotAxis::PlotAxis(double low, double high, AxisScale scale, double first, double last)
    : low_(low), high_(high), first_(first), last_(last), scale_(scale) {
  if (!(high_ - low_ > 1e-9 * std::max(std::abs(low_), std::abs(high_)))) {
    const double margin = low_ == 0 ? 1 : 0.5 * std::abs(low_);
    low_ -= margin;
    high_ += margin;
  }
}

double PlotAxis::pixel(double value) const {
  const double inside = std::clamp(value, low_, high_);
  const double part = scale_ == AxisScale::kLog ? std::log(inside / low_) / std::log(high_ / low_)
                                                : (inside - low_) / (high_ - low_);
  return first_ + part * (last_ - first_);
}

std::vector<double> PlotAxis::log_values(int count) const {
  const int first = static_cast<int>(std::ceil(std::log10(low_) - 1e-9));
  const int last = static_cast<int>(std::floor(std::log10(high_) + 1e-9));
  const int decades = last - first + 1;
  std::vector<double> values;
  const int stride = std::max(1, (decades + count - 1) / count);
  for (int exponent = first - 1; exponent <= last; ++exponent) {
    const double decade = std::pow(10.0, exponent);
    for (const int factor : {1, 2, 5}) {
      if (factor == 1 ? (exponent - first) % stride != 0 : decades * 2 > count) continue;
      const double value = factor * decade;
      if (value >= low_ * (1 - 1e-9) && value <= high_ * (1 + 1e-9)) values.push_back(value);
    }
  }
  return values;
}

std::vector<Tick> PlotAxis::ticks(int count, TickLabels labels) const {
  const auto label = labels == TickLabels::kCount ? count_label : decimal_label;
  std::vector<Tick> ticks;
  if (scale_ == AxisScale::kLog) {
    for (const double value : log_values(count))
      ticks.push_back({value, label(value, value, value)});
    if (ticks.size() >= 2) return ticks;
    ticks.clear();  // less than a decade: round linear values serve better
  }
  const double step = round_step(high_ - low_, count);
  const double largest = std::max(std::abs(low_), std::abs(high_));
  for (double k = std::ceil(low_ / step - 1e-9); k * step <= high_ + 1e-9 * step; ++k) {
    const double value = k * step + 0.0;  // no negative zero
    ticks.push_back({value, label(value, step, largest)});
  }
  return ticks;
}

}  // namespace trireme
