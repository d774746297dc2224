#include <algorithm>

#include "pipeline/schedules/schedules.h"

namespace trireme {

Schedule make_interleaved(int stages, int virtual_stages, int micro_batches, int group_size) {
  // A rank's forwards in order, as (chunk, micro-batch); backwards take chunks from the other end.
  std::vector<std::pair<int, int>> turns;
  for (int group = 0; group < micro_batches; group += group_size) {
    const int end = std::min(group + group_size, micro_batches);
    for (int chunk = 0; chunk < virtual_stages; ++chunk) {
      for (int i = group; i < end; ++i) turns.emplace_back(chunk, i);
    }
  }
  Schedule schedule;
  schedule.placement = interleaved_placement(stages, virtual_stages);
  for (int rank = 0; rank < stages; ++rank) {
    std::vector<Action>& actions = schedule.ranks.emplace_back();
    const auto ahead = std::min<std::size_t>(
        static_cast<std::size_t>(2 * (stages - 1 - rank) + (virtual_stages - 1) * group_size),
        turns.size());
    for (std::size_t i = 0; i < turns.size() + ahead; ++i) {
      if (i < turns.size())
        actions.push_back({ActionKind::kForward, turns[i].first * stages + rank, turns[i].second});
      if (i >= ahead) {
        const auto [chunk, micro_batch] = turns[i - ahead];
        actions.push_back(
            {ActionKind::kBackward, (virtual_stages - 1 - chunk) * stages + rank, micro_batch});
      }
    }
  }
  return schedule;
}

}  // namespace trireme
