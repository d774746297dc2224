#include "pipeline/schedules/schedules.h"

namespace trireme {

Schedule make_gpipe(int stages, int micro_batches) {
  Schedule schedule;
  for (int rank = 0; rank < stages; ++rank) {
    std::vector<Action>& actions = schedule.ranks.emplace_back();
    for (int i = 0; i < micro_batches; ++i) actions.push_back({ActionKind::kForward, rank, i});
    // Ascending, so that weight gradients are summed in the order of every other schedule.
    for (int i = 0; i < micro_batches; ++i) actions.push_back({ActionKind::kBackward, rank, i});
  }
  return schedule;
}

}  // namespace trireme
