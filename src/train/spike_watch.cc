#include "train/spike_watch.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "telemetry/metrics_lines.h"

namespace trireme {

namespace {

std::vector<double> numbers_of(const Json& json, std::string_view key) {
  std::vector<double> numbers;
  const Json* list = json.find(key);
  if (list == nullptr || !list->is_array()) return numbers;
  for (const Json& number : list->as_array()) {
    if (number.is_number()) numbers.push_back(number.as_double());
  }
  return numbers;
}

void keep_last(std::vector<double>& numbers, std::size_t count) {
  if (numbers.size() > count)
    numbers.erase(numbers.begin(), numbers.end() - static_cast<std::ptrdiff_t>(count));
}

}  // namespace

SpikeWatch::SpikeWatch(const std::optional<SpikeRule>& rule, const Json& scalars) : rule_(rule) {
  const Json* saved = scalars.find("spikes");
  if (!rule_ || saved == nullptr || !saved->is_object()) return;
  losses_ = numbers_of(*saved, "losses");
  norms_ = numbers_of(*saved, "norms");
  const auto window = static_cast<std::size_t>(rule_->window);
  const std::size_t both = std::min({losses_.size(), norms_.size(), window});
  keep_last(losses_, both);
  keep_last(norms_, both);
}

bool SpikeWatch::stands_out(const std::vector<double>& known, double latest) const {
  const auto count = static_cast<double>(known.size());
  const double mean = std::accumulate(known.begin(), known.end(), 0.0) / count;
  double squares = 0;
  for (const double one : known) squares += (one - mean) * (one - mean);
  return latest - mean > rule_->sigma * std::sqrt(squares / (count - 1));
}

std::string_view SpikeWatch::spike_of(double loss, double norm) const {
  if (!rule_) return "";
  const auto known = static_cast<std::int64_t>(losses_.size());
  if (known < 2 || known + 1 < rule_->window / 2) return "";
  if (stands_out(losses_, loss)) return kLossSpike;
  return stands_out(norms_, norm) ? kNormSpike : "";
}

void SpikeWatch::add(double loss, double norm) {
  if (!rule_ || !std::isfinite(loss) || !std::isfinite(norm)) return;
  losses_.push_back(loss);
  norms_.push_back(norm);
  keep_last(losses_, static_cast<std::size_t>(rule_->window));
  keep_last(norms_, static_cast<std::size_t>(rule_->window));
}

Json SpikeWatch::json() const {
  if (!rule_) return nullptr;
  Json losses = Json::array(), norms = Json::array();
  for (const double one : losses_) losses.push_back(one);
  for (const double one : norms_) norms.push_back(one);
  return Json::Object{{"losses", std::move(losses)}, {"norms", std::move(norms)}};
}

}  // namespace trireme
