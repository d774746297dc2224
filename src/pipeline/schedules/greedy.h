#pragma once
// A schedule by simulation: a free rank takes what its rule prefers among the actions that are
// ready and fit into memory. zb-auto and zb-v try some rules and keep the shortest schedule.

#include <cstdint>
#include <vector>

#include "pipeline/schedule.h"
#include "pipeline/simulate.h"

namespace trireme {

struct GreedyRule {
  /// Which of F and B where both are ready. In turns, a rank out of memory makes room for F by a W.
  enum class First : std::uint8_t { kBackward, kForward, kInTurns } first = First::kInTurns;
  /// F starts although a B arrives before it ends, if that is after this share of it.
  double delay_from = 1;
  /// A W may start in a gap that is shorter than it.
  enum class Gap : std::uint8_t { kNever, kWhereBubbleGrows, kAlways } short_gap = Gap::kNever;
  /// F waits until the rank before is two micro-batches ahead: taken at once, inputs lack later.
  enum class Lead : std::uint8_t { kNever, kUntilBackward, kAlways } keep_lead = Lead::kNever;
  /// Before its first B a rank runs at most 1 + this for each rank behind it, rounded up; 0: any.
  double ahead_each = 0;
  /// Of a rank's two ready stages: the later or earlier one of the model, or each after the other.
  enum class Stage : std::uint8_t { kFar, kNear, kInTurns } stage = Stage::kFar;
  /// Where W keeps more than an activation: how many B may wait for theirs on a rank (the last of a
  /// line has most). 0: B and W are one action.
  std::int32_t kept = 1;
};

struct GreedyTask {
  std::int32_t ranks = 1, micro_batches = 1;
  std::vector<std::int32_t> placement;  ///< one stage of each rank, or a V
  ActionTimes times;
  double memory_limit = 1;  ///< full stages, at least 1
  double w_memory = 1;
  StageSizes stage_sizes = {};  ///< as ScheduleRequest has them
};

/// What a rank may hold: one micro-batch of each of its stages, however small the limit.
double limit_of_rank(double limit, const StageSizes& sizes,
                     const std::vector<std::int32_t>& placement, std::int32_t rank);

/// Valid and within the limit. No ranks where the rule comes to a stand, which only one that keeps
/// a lead can, or where a rank waits longer than `bubble_max` in all; twice that with a rule that
/// holds F back, as it may wait where its schedule need not.
Schedule greedy_schedule(const GreedyTask& task, const GreedyRule& rule, double bubble_max);

}  // namespace trireme
