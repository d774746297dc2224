#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trireme {

namespace {

double falling(DecayShape shape, double t) {
  switch (shape) {
    case DecayShape::kCosine:
      return (1 + std::cos(std::numbers::pi * t)) / 2;
    case DecayShape::kSqrt:
      return 1 - std::sqrt(t);
    case DecayShape::kLinear:
      break;
  }
  return 1 - t;
}

}  // namespace

double learning_rate(const RunConfig::LrSchedule& schedule, double lr, std::int64_t steps,
                     std::int64_t k) {
  const std::int64_t warmup = schedule.warmup_steps;
  if (k <= warmup) return lr * static_cast<double>(k) / static_cast<double>(warmup);
  const auto ratio = [](std::int64_t part, std::int64_t whole) {
    return whole <= 0
               ? 1.0
               : std::clamp(static_cast<double>(part) / static_cast<double>(whole), 0.0, 1.0);
  };
  double f = 1;
  switch (schedule.kind) {
    case LrScheduleKind::kConstant:
      return lr;
    case LrScheduleKind::kCosine:
    case LrScheduleKind::kLinear: {
      const double t = ratio(k - warmup, schedule.decay_end_step.value_or(steps) - warmup);
      f = falling(
          schedule.kind == LrScheduleKind::kCosine ? DecayShape::kCosine : DecayShape::kLinear, t);
      break;
    }
    case LrScheduleKind::kWsd: {
      const std::int64_t decay = schedule.decay_steps_of(steps);
      if (k > steps - decay) f = falling(schedule.decay_shape, ratio(k - steps + decay, decay));
      break;
    }
  }
  return schedule.min_lr + (lr - schedule.min_lr) * f;
}

}  // namespace trireme
