#pragma once
// The best layout of a number of ranks for a model, a global batch and a memory: those that `train`
// accepts and that fit, in the order of their predicted seconds.
//
// Best first: layouts wait in a queue by a bound of their seconds from below
// (plan/layout_bounds.h), first as shapes, then with schedule and stage of ZeRO; what comes to the
// front is refined, and in the end timed as `train plan` times it. So what is found first is the
// best, however few have been timed. Deterministic.

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/timed_layout.h"

namespace trireme {

/// Layouts that are timed at most, and of them behind the first that is found: some ten
/// milliseconds each.
inline constexpr std::int64_t kTimedMost = 150, kTimedBeside = 40;
/// Where pipeline ranks times micro-batches are more (or very many layouts wait), schedules other
/// than 1f1b and interleaved are tried on the best layouts alone: bounds say little of them. Where
/// they are more than kLongStep, those that search themselves are not made at all: one takes
/// seconds.
inline constexpr std::int64_t kSmallStep = 32, kLongStep = 4096;

struct SearchResult {
  /// Ascending in seconds; the best of each mesh (extents and method of the context axis).
  std::vector<TimedLayout> best;
  /// Ascending in seconds: each holds a twentieth less than all before, or costs less.
  std::vector<TimedLayout> front;
  std::int64_t shapes = 0;  ///< extents, micro-batches and recomputations that rules accept
  std::int64_t timed = 0;
  bool bounded = true;        ///< no layout that was looked for is faster than best.front(), ...
  bool all_schedules = true;  ///< ... and all schedules were looked for on all of them, ...
  bool long_step = false;     ///< ... or but for zb-auto and zb-v on the best
};

/// At most `wanted` of each. Both are empty where nothing fits.
SearchResult search_layouts(const LayoutTask& task, std::size_t wanted = 5);

}  // namespace trireme
