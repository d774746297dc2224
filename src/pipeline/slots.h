#pragma once
// Memory that a rank's virtual stages share. What a micro-batch holds between two of its actions
// lies in slots; those of a rank are numbered from 0, and whoever comes takes free ones, whichever
// stage had them before. So a V placement, whose two stages are full at different times, takes no
// more than what it holds at once.

#include <cstdint>
#include <vector>

#include "pipeline/schedule.h"

namespace trireme {

/// What is held, and between which actions.
enum class Holding : std::uint8_t {
  kActivations,  ///< F to W or BW
  kGradients,    ///< B to W, of what W needs beside activations
  kRecomputed,   ///< R to B or BW
};

/// The slots of each micro-batch of each virtual stage, on the stage's rank.
class SlotTable {
 public:
  SlotTable() = default;
  /// A micro-batch of stage s takes sizes[s] slots, or one where there are no sizes.
  SlotTable(const ScheduleShape& shape, const std::vector<std::int64_t>& sizes);

  /// -1 where it holds none.
  [[nodiscard]] std::int32_t of(std::int32_t virtual_stage, std::int32_t micro_batch,
                                std::int64_t which = 0) const {
    const Stage& stage = stages_[static_cast<std::size_t>(virtual_stage)];
    return stage.slots[static_cast<std::size_t>(micro_batch * stage.size + which)];
  }
  /// Of all micro-batches of a stage, in their order.
  [[nodiscard]] const std::vector<std::int32_t>& of_stage(std::int32_t virtual_stage) const {
    return stages_[static_cast<std::size_t>(virtual_stage)].slots;
  }
  /// Of a rank.
  [[nodiscard]] std::int32_t count(std::int32_t rank) const;

 private:
  friend SlotTable slots_of(const Schedule& schedule, Holding holding,
                            const std::vector<std::int64_t>& sizes);
  struct Stage {
    std::int32_t rank = 0;
    std::int64_t size = 1;
    std::vector<std::int32_t> slots;
  };
  std::vector<Stage> stages_;
};

/// As few slots as are held at once; of those that are free the ones that have been so for longest,
/// as what arrives may then arrive early. What a group ends counts as held until its end.
SlotTable slots_of(const Schedule& schedule, Holding holding,
                   const std::vector<std::int64_t>& sizes = {});

}  // namespace trireme
