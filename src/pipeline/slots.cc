#include "pipeline/slots.h"

#include <algorithm>
#include <deque>
#include <span>

namespace trireme {

namespace {

bool begins(ActionKind kind, Holding holding) {
  switch (holding) {
    case Holding::kActivations:
      return kind == ActionKind::kForward;
    case Holding::kGradients:
      return kind == ActionKind::kBackwardInput;
    case Holding::kRecomputed:
      return kind == ActionKind::kRecompute;
  }
  return false;
}

bool ends(ActionKind kind, Holding holding) {
  return holding == Holding::kRecomputed ? goes_back(kind) : makes_weight_gradients(kind);
}

}  // namespace

SlotTable::SlotTable(const ScheduleShape& shape, const std::vector<std::int64_t>& sizes) {
  for (std::int32_t s = 0; s < shape.virtual_stages; ++s) {
    const auto index = static_cast<std::size_t>(s);
    Stage& stage = stages_.emplace_back();
    stage.rank = shape.placement[index];
    if (!sizes.empty()) stage.size = sizes[index];
    stage.slots.assign(static_cast<std::size_t>(shape.micro_batches * stage.size), -1);
  }
}

std::int32_t SlotTable::count(std::int32_t rank) const {
  std::int32_t most = -1;
  for (const Stage& stage : stages_) {
    if (stage.rank != rank) continue;
    for (const std::int32_t slot : stage.slots) most = std::max(most, slot);
  }
  return most + 1;
}

SlotTable slots_of(const Schedule& schedule, Holding holding,
                   const std::vector<std::int64_t>& sizes) {
  SlotTable table(shape_of(schedule), sizes);
  const auto slots_of_action = [&](const Action& action) {
    SlotTable::Stage& stage = table.stages_[static_cast<std::size_t>(action.virtual_stage)];
    const auto size = static_cast<std::size_t>(stage.size);
    return std::span(stage.slots)
        .subspan(static_cast<std::size_t>(action.micro_batch) * size, size);
  };
  for (const std::vector<Action>& actions : schedule.ranks) {
    std::int32_t count = 0;
    std::deque<std::int32_t> free;
    for (std::size_t i = 0; i < actions.size();) {
      const std::size_t end = end_of_group(actions, i);
      for (std::size_t j = i; j < end; ++j) {
        if (!begins(actions[j].kind, holding)) continue;
        for (std::int32_t& slot : slots_of_action(actions[j])) {
          if (free.empty()) free.push_back(count++);
          slot = free.front();
          free.pop_front();
        }
      }
      for (; i < end; ++i) {
        if (!ends(actions[i].kind, holding)) continue;
        for (const std::int32_t slot : slots_of_action(actions[i]))
          if (slot >= 0) free.push_back(slot);
      }
    }
  }
  return table;
}

}  // namespace trireme
