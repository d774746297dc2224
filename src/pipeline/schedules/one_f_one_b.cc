#include <algorithm>

#include "pipeline/schedule.h"

namespace trireme {

Schedule make_1f1b(int stages, int micro_batches) {
  Schedule schedule;
  for (int rank = 0; rank < stages; ++rank) {
    std::vector<Action> actions;
    const int ahead = std::min(stages - 1 - rank, micro_batches);
    for (int i = 0; i < micro_batches + ahead; ++i) {
      if (i < micro_batches) actions.push_back({ActionKind::kForward, rank, i});
      if (i >= ahead) actions.push_back({ActionKind::kBackward, rank, i - ahead});
    }
    schedule.ranks.push_back(std::move(actions));
  }
  return schedule;
}

}  // namespace trireme
