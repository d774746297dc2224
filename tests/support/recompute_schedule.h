#pragma once

#include <algorithm>
#include <cstddef>
#include <random>

#include "pipeline/schedule.h"

namespace trireme {

/// The schedule with an R for each second pair or so, anywhere between its F and what goes back.
inline Schedule with_recompute(Schedule schedule, std::mt19937_64& random) {
  const auto same_pair = [](const Action& a, const Action& b) {
    return a.virtual_stage == b.virtual_stage && a.micro_batch == b.micro_batch;
  };
  for (std::vector<Action>& actions : schedule.ranks) {
    const std::vector<Action> before = actions;
    for (const Action& back : before) {
      if (!goes_back(back.kind) || random() % 2 == 0) continue;
      const auto forward = std::find_if(actions.begin(), actions.end(), [&](const Action& each) {
        return each.kind == ActionKind::kForward && same_pair(each, back);
      });
      const auto end = std::find(forward, actions.end(), back);
      auto at = forward + 1 +
                static_cast<std::ptrdiff_t>(random() % static_cast<std::size_t>(end - forward));
      // Not within a group; one behind `forward` is another pair's, so there is room on one side.
      if (at->group != 0 && (at - 1)->group == at->group) at += at - 1 == forward ? 1 : -1;
      actions.insert(at, {ActionKind::kRecompute, back.virtual_stage, back.micro_batch});
    }
  }
  return schedule;
}

}  // namespace trireme
