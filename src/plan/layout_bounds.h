#pragma once
// What a layout takes at least, of time and of memory, before it has a schedule: search looks at
// layouts in the order of these and leaves out what they rule out. None exceeds what resolve_run,
// predict_step and ranks_of say of any layout that it stands for.

#include <map>
#include <optional>
#include <vector>

#include "plan/layout_space.h"

namespace trireme {

class LayoutBounds {
 public:
  /// The task must outlive it.
  explicit LayoutBounds(const LayoutTask& task);

  /// Of any schedule and stage of ZeRO: mean work of the pipeline's ranks.
  double shape_seconds(const LayoutChoice& shape);
  /// Of any schedule: mean of what the ranks hold of the layers' parameters, and one micro-batch.
  std::int64_t shape_bytes(const LayoutChoice& shape, std::int64_t zero_stage);
  /// Nothing where the schedule does not exist for the numbers.
  std::optional<double> seconds(const LayoutChoice& layout, bool may_split);
  /// Of a layout whose schedule does not depend on memory (1f1b, interleaved): what predict_step
  /// says, with the group of ZeRO that is faster.
  double played_seconds(const LayoutChoice& layout);
  /// Of the first and the last pipeline rank; B and W in one action hold what a short step does,
  /// else one micro-batch in flight.
  std::int64_t bytes(const LayoutChoice& layout, bool may_split);

  /// F and B of all its ranks.
  std::int64_t actions_of(const LayoutChoice& layout);

  /// The task's config with this layout.
  const RunConfig& config_of(const LayoutChoice& layout);

 private:
  struct LayerKind {
    std::int64_t first = 0, count = 0;
  };
  /// Trained parameters of layers: elements, and those that have a copy in the compute type or in
  /// fp8. What stands still (adapters' base) may be stored in few bits.
  struct Elements {
    double all = 0, copied = 0;
  };
  template <class Seconds>
  double with_either_group(const Seconds& seconds);
  const ResolvedRun& outline(const LayoutChoice& layout);
  /// Its stages into run_.pipeline; false where the schedule does not exist for the numbers.
  bool lay_out(const LayoutChoice& layout);
  void take_schedule(Schedule schedule);
  void count_elements();
  double one_micro_batch_bytes(const LayoutChoice& shape);
  std::int64_t bytes_of(std::int64_t zero_group, std::int64_t rank);

  const LayoutTask& task_;
  RunConfig config_;
  ResolvedRun run_;  ///< of the layout looked at, without a schedule
  std::vector<LayerKind> kinds_;
  Elements dense_, experts_;
  std::map<std::vector<std::int64_t>, double> activations_;  ///< of shapes
  std::map<std::vector<std::int64_t>, Pipeline> stages_;     ///< of schedules
};

}  // namespace trireme
