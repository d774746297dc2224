#pragma once
// All layouts of a number of ranks, as far as rules decide: search asks those of `train`.

#include <vector>

#include "plan/timed_layout.h"

namespace trireme {

/// Extents (divisors of the world), method of the context axis, micro-batch (divisors of what a
/// data rank has) and recomputation that the rules of resolve_run accept; schedule and ZeRO's stage
/// are left open. Columns of experts stay whole or are cut as far as the tensor axis cuts. Those
/// that hold least: micro-batches of one sample with full recomputation.
enum class ShapesOf : std::uint8_t { kAll, kLeastMemory };
std::vector<LayoutChoice> layout_shapes(const LayoutTask& task, ShapesOf of = ShapesOf::kAll);

/// The shape with each stage of ZeRO: 0 alone where no rank holds the same weights as another.
std::vector<std::int64_t> zero_stages_of(const LayoutChoice& shape, std::int64_t world);

/// Schedules: 1f1b alone without a pipeline.
struct ScheduleChoice {
  std::string name;
  std::optional<std::int64_t> virtual_stages;
  bool may_split = false;  ///< B and W may stand apart
  bool usual = true;       ///< 1f1b and interleaved
  bool searches = false;   ///< itself, for a short order of its actions
};
/// Those of a pipeline of so many ranks that stands `layers` layers: interleaved with each number
/// of virtual stages. Whether one exists for the micro-batches, lay_out_stages says.
std::vector<ScheduleChoice> schedules_of(std::int64_t pipeline, std::int64_t layers);

/// In ascending order.
std::vector<std::int64_t> divisors_of(std::int64_t number);

}  // namespace trireme
