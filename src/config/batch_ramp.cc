#include "config/batch_ramp.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "base/math.h"

namespace trireme {

std::int64_t GlobalBatch::largest() const {
  return std::ranges::max(phases, {}, &BatchPhase::size).size;
}

BatchRamp::BatchRamp(const GlobalBatch& batch, std::int64_t sequence_length) {
  for (const BatchPhase& phase : batch.phases)
    phases_.push_back({ceil_div(phase.from_token, sequence_length), phase.size});
}

std::size_t BatchRamp::phase_at(std::int64_t consumed_samples) const {
  std::size_t phase = phases_.size() - 1;
  while (phases_[phase].from_sample > consumed_samples) --phase;
  return phase;
}

std::int64_t BatchRamp::steps_left(std::size_t phase, std::int64_t consumed_samples) const {
  if (phase + 1 == phases_.size()) return std::numeric_limits<std::int64_t>::max();
  return ceil_div(phases_[phase + 1].from_sample - consumed_samples, phases_[phase].size);
}

std::int64_t BatchRamp::size_at(std::int64_t consumed_samples) const {
  return phases_[phase_at(consumed_samples)].size;
}

std::vector<std::int64_t> BatchRamp::sizes() const {
  std::vector<std::int64_t> sizes;
  for (const Phase& phase : phases_) sizes.push_back(phase.size);
  std::ranges::sort(sizes, std::greater());
  sizes.erase(std::ranges::unique(sizes).begin(), sizes.end());
  return sizes;
}

std::vector<BatchRamp::Stretch> BatchRamp::stretches(std::int64_t consumed_samples,
                                                     std::int64_t steps) const {
  std::vector<Stretch> stretches;
  while (steps > 0) {
    const std::size_t phase = phase_at(consumed_samples);
    const Stretch next{std::min(steps, steps_left(phase, consumed_samples)), phases_[phase].size};
    stretches.push_back(next);
    consumed_samples += next.steps * next.size;
    steps -= next.steps;
  }
  return stretches;
}

std::int64_t BatchRamp::advance(std::int64_t consumed_samples, std::int64_t steps) const {
  for (const Stretch& stretch : stretches(consumed_samples, steps))
    consumed_samples += stretch.steps * stretch.size;
  return consumed_samples;
}

std::int64_t BatchRamp::steps_to(std::int64_t samples) const {
  std::int64_t steps = 0, consumed = 0;
  while (consumed < samples) {
    const std::size_t phase = phase_at(consumed);
    const std::int64_t size = phases_[phase].size;
    const std::int64_t taken =
        std::min(steps_left(phase, consumed), ceil_div(samples - consumed, size));
    steps += taken;
    consumed += taken * size;
  }
  return steps;
}

std::int64_t BatchRamp::steps_within(std::int64_t samples) const {
  const std::int64_t steps = steps_to(samples);
  return advance(0, steps) > samples ? steps - 1 : steps;
}

}  // namespace trireme
