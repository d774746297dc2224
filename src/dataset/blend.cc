#include "dataset/blend.h"

#include <algorithm>

#include "base/error.h"

namespace trireme {
namespace {
constexpr std::int64_t kStride = 4096;

/// numpy's order of additions: eight partial sums for blocks of at most 128, halves above.
double pairwise_sum(std::span<const double> values) {
  const std::size_t count = values.size();
  if (count < 8) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum;
  }
  if (count > 128) {
    const std::size_t half = count / 2 - count / 2 % 8;
    return pairwise_sum(values.first(half)) + pairwise_sum(values.subspan(half));
  }
  double r[8];
  std::copy_n(values.begin(), 8, r);
  std::size_t i = 8;
  for (; i + 8 <= count; i += 8) {
    for (std::size_t k = 0; k < 8; ++k) r[k] += values[i + k];
  }
  double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  for (; i < count; ++i) sum += values[i];
  return sum;
}

std::vector<std::int64_t> counts_of(
    const std::vector<std::shared_ptr<const SampleSource>>& sources) {
  std::vector<std::int64_t> counts;
  for (const auto& source : sources) counts.push_back(source->count());
  return counts;
}

std::int64_t sum_of(const std::vector<std::int64_t>& counts) {
  std::int64_t sum = 0;
  for (const std::int64_t count : counts) {
    sum = count > SampleSource::kEndless - sum ? SampleSource::kEndless : sum + count;
  }
  return sum;
}
}  // namespace

std::vector<double> normalized(std::span<const double> weights) {
  const double sum = pairwise_sum(weights);
  std::vector<double> result(weights.begin(), weights.end());
  for (double& weight : result) weight /= sum;
  return result;
}

GreedyBlend::GreedyBlend(std::vector<double> weights, std::vector<std::int64_t> limits)
    : weights_(std::move(weights)), limits_(std::move(limits)), taken_(weights_.size(), 0) {
  expect(!weights_.empty() && (limits_.empty() || limits_.size() == weights_.size()),
         "{} weights, {} limits", weights_.size(), limits_.size());
  if (limits_.empty()) limits_.assign(weights_.size(), SampleSource::kEndless);
  states_.reserve(weights_.size() * 1024);
  states_ = taken_;
}

std::size_t GreedyBlend::choose() const {
  const double position = std::max(static_cast<double>(cursor_), 1.0);
  std::size_t best = weights_.size();
  double best_error = 0;
  for (std::size_t d = 0; d < weights_.size(); ++d) {
    if (taken_[d] >= limits_[d]) continue;
    const double error = weights_[d] * position - static_cast<double>(taken_[d]);
    if (best < weights_.size() && error <= best_error) continue;
    best_error = error;
    best = d;
  }
  expect(best < weights_.size(), "sample {} of a blend whose sources are used up", cursor_);
  return best;
}

void GreedyBlend::move_to(std::int64_t sample) const {
  const auto sources = static_cast<std::int64_t>(weights_.size());
  const auto stored = static_cast<std::int64_t>(states_.size()) / sources;
  const std::int64_t state = std::min(sample / kStride, stored - 1);
  if (sample < cursor_ || state * kStride > cursor_) {
    cursor_ = state * kStride;
    std::copy_n(states_.begin() + state * sources, sources, taken_.begin());
  }
  while (cursor_ < sample) {
    ++taken_[choose()];
    ++cursor_;
    const auto known = static_cast<std::int64_t>(states_.size());
    if (cursor_ % kStride == 0 && cursor_ / kStride * sources == known) {
      states_.insert(states_.end(), taken_.begin(), taken_.end());
    }
  }
}

Draw GreedyBlend::at(std::int64_t sample) const {
  expect(sample >= 0, "sample {}", sample);
  const std::lock_guard lock(mutex_);
  move_to(sample);
  const std::size_t source = choose();
  return {static_cast<std::int64_t>(source), taken_[source]};
}

std::vector<std::int64_t> GreedyBlend::taken(std::int64_t count) const {
  const std::lock_guard lock(mutex_);
  move_to(count);
  return taken_;
}

BlendSource::BlendSource(std::vector<std::shared_ptr<const SampleSource>> sources,
                         std::vector<double> weights, Repeat repeat, std::int64_t size)
    : sources_(std::move(sources)),
      count_(std::min(size, sum_of(counts_of(sources_)))),
      blend_(std::move(weights),
             repeat == Repeat::kOnce ? counts_of(sources_) : std::vector<std::int64_t>()) {
  for (const auto& source : sources_) {
    expect(source->length() == length(), "sources of {} and {} tokens", length(), source->length());
  }
}

void BlendSource::read(std::int64_t sample, const Window& window) const {
  const Draw draw = blend_.at(sample);
  sources_[draw.source]->read(draw.sample, window);
}

const std::string& BlendSource::source_name(std::int64_t sample) const {
  const Draw draw = blend_.at(sample);
  return sources_[draw.source]->source_name(draw.sample);
}

std::string BlendSource::describe(std::int64_t sample, std::int64_t index) const {
  const Draw draw = blend_.at(sample);
  return sources_[draw.source]->describe(draw.sample, index);
}

}  // namespace trireme
