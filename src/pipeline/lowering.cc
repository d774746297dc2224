#include "pipeline/lowering.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"

namespace trireme {

namespace {

std::size_t at(std::int32_t rank) { return static_cast<std::size_t>(rank); }

struct Transfer {
  double time;  // when it is made and there is room for it
  Output output;
  std::int32_t needs = 0;            // so many actions of the receiver, its first ones
  std::size_t position[2] = {0, 0};  // its step at the sender and at the receiver
};

/// Calls f(rank, first, end, when they end) for the actions of each group.
template <class F>
void for_each_group(const Schedule& schedule, const Replay& replay, const F& f) {
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const std::vector<Action>& actions = schedule.ranks[rank];
    for (std::size_t i = 0; i < actions.size();) {
      const std::size_t end = end_of_group(actions, i);
      double duration = 0;
      for (std::size_t j = i; j < end; ++j) duration += replay.durations[rank][j];
      f(actions, i, end, replay.starts[rank][i] + duration);
      i = end;
    }
  }
}

/// How many actions of its receiver must have ended before each output that travels is made: those
/// that its rank has heard of, by the inputs of its actions so far.
class Needs {
 public:
  Needs(const Schedule& schedule, const ScheduleShape& shape, const Replay& replay)
      : shape_(shape), heard_(at(shape.ranks), std::vector<std::int32_t>(at(shape.ranks), 0)) {
    std::vector<std::pair<std::size_t, std::size_t>> order;  // rank, position
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) order.emplace_back(rank, i);
    }
    std::stable_sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
      return replay.starts[a.first][a.second] < replay.starts[b.first][b.second];
    });
    for (const auto& [rank, i] : order) run(rank, i, schedule.ranks[rank][i]);
  }

  [[nodiscard]] std::int32_t of(const Action& made) const { return needs_.at(key(made)); }

 private:
  using Key = std::pair<bool, std::size_t>;
  [[nodiscard]] Key key(const Action& made) const {
    return {made.kind == ActionKind::kForward, shape_.index(made.virtual_stage, made.micro_batch)};
  }
  void run(std::size_t rank, std::size_t i, const Action& action);

  const ScheduleShape& shape_;
  std::vector<std::vector<std::int32_t>> heard_;        // by each rank of each
  std::map<Key, std::vector<std::int32_t>> under_way_;  // what the maker had heard of
  std::map<Key, std::int32_t> needs_;
};

/// Every transfer in the one order. A gradient goes where its micro-batch has its place already,
/// an activation where the one that was there before has ended.
std::vector<Transfer> all_transfers(const Schedule& schedule, const ScheduleShape& shape,
                                    const Replay& replay) {
  const SlotTable slots = slots_of(schedule, Holding::kActivations);
  std::vector<std::vector<double>> free_from;  // of each rank and slot
  for (std::int32_t rank = 0; rank < shape.ranks; ++rank)
    free_from.emplace_back(at(slots.count(rank)), 0);
  std::vector<double> room(shape.pairs(), 0);
  std::vector<Transfer> transfers;
  for_each_group(schedule, replay, [&](const auto& actions, auto i, auto end, double made) {
    const auto slot = [&](const Action& action) -> double& {
      const auto [stage, micro_batch] = std::pair(action.virtual_stage, action.micro_batch);
      return free_from[at(shape.placement[at(stage)])][at(slots.of(stage, micro_batch))];
    };
    for (std::size_t j = i; j < end; ++j) {
      const Action& action = actions[j];
      if (action.kind == ActionKind::kForward)
        room[shape.index(action.virtual_stage, action.micro_batch)] = slot(action);
      const Output output = output_of(action, shape);
      if (output.travels()) transfers.push_back({made, output});
    }
    for (; i < end; ++i)
      if (makes_weight_gradients(actions[i].kind)) slot(actions[i]) = made;
  });
  for (Transfer& transfer : transfers) {
    const Action& made = transfer.output.made;
    if (made.kind != ActionKind::kForward) continue;
    transfer.time =
        std::max(transfer.time, room[shape.index(transfer.output.to_stage, made.micro_batch)]);
  }
  std::stable_sort(transfers.begin(), transfers.end(),
                   [](const Transfer& a, const Transfer& b) { return a.time < b.time; });
  return transfers;
}

void Needs::run(std::size_t rank, std::size_t i, const Action& action) {
  std::vector<std::int32_t>& heard = heard_[rank];
  if (const Output input = input_of(action, shape_); input.travels()) {
    const auto found = under_way_.find(key(input.made));
    for (std::size_t other = 0; other < heard.size(); ++other)
      heard[other] = std::max(heard[other], found->second[other]);
    under_way_.erase(found);
  }
  heard[rank] = static_cast<std::int32_t>(i) + 1;
  const Output output = output_of(action, shape_);
  if (!output.travels()) return;
  under_way_[key(output.made)] = heard;
  needs_[key(output.made)] = heard[at(output.to)];
}

/// Positions in each stage's rank after which no weight gradients of it come.
std::vector<std::size_t> last_weight_gradients(const Schedule& schedule,
                                               const ScheduleShape& shape) {
  std::vector<std::size_t> last(at(shape.virtual_stages), 0);
  for (const std::vector<Action>& actions : schedule.ranks) {
    for (std::size_t i = 0; i < actions.size(); ++i)
      if (makes_weight_gradients(actions[i].kind)) last[at(actions[i].virtual_stage)] = i;
  }
  return last;
}

/// Marks each send and receive that stand side by side at both of their ranks.
void mark_batches(Program& program, const std::vector<std::vector<Transfer*>>& by_rank) {
  const auto position = [](const Transfer& transfer, std::int32_t rank) {
    return transfer.position[transfer.output.from == rank ? 0 : 1];
  };
  std::int32_t marks = 0;
  for (std::int32_t rank = 0; rank < std::ssize(program.ranks); ++rank) {
    const std::vector<Transfer*>& own = by_rank[at(rank)];
    for (std::size_t i = 0; i + 1 < own.size(); ++i) {
      const Transfer &a = *own[i], &b = *own[i + 1];
      const std::int32_t peer = a.output.from == rank ? a.output.to : a.output.from;
      const bool exchange = a.output.from == b.output.to && a.output.to == b.output.from;
      // The pair is marked when its lower rank is looked at.
      if (!exchange || rank > peer) continue;
      const std::size_t here = position(a, rank), there = position(a, peer);
      if (position(b, rank) != here + 1 || position(b, peer) != there + 1) continue;
      ++marks;
      for (const std::size_t step : {here, here + 1}) program.ranks[at(rank)][step].batch = marks;
      for (const std::size_t step : {there, there + 1}) program.ranks[at(peer)][step].batch = marks;
      ++i;
    }
  }
}

}  // namespace

Output output_of(const Action& action, const ScheduleShape& shape) {
  Output output;
  const bool forward = action.kind == ActionKind::kForward;
  if (!forward && !goes_back(action.kind)) return output;
  output.made = {forward ? ActionKind::kForward : ActionKind::kBackwardInput, action.virtual_stage,
                 action.micro_batch};
  output.to_stage = action.virtual_stage + (forward ? 1 : -1);
  const std::int32_t first = forward ? 0 : shape.first_trained;
  if (output.to_stage < first || output.to_stage >= shape.virtual_stages) return output;
  output.from = shape.placement[at(action.virtual_stage)];
  output.to = shape.placement[at(output.to_stage)];
  return output;
}

Output input_of(const Action& action, const ScheduleShape& shape) {
  const bool forward = action.kind == ActionKind::kForward;
  const std::int32_t from = action.virtual_stage + (forward ? -1 : 1);
  if ((!forward && !goes_back(action.kind)) || from < 0 || from >= shape.virtual_stages) return {};
  return output_of(
      {forward ? ActionKind::kForward : ActionKind::kBackwardInput, from, action.micro_batch},
      shape);
}

Program lower(const Schedule& schedule, const ActionTimes& times) {
  const ScheduleShape shape = shape_of(schedule);
  // B of a stage that has nothing to train frees memory that its output must have left: it has its
  // place behind B of the stage after it here too, though it waits for nothing.
  ScheduleShape in_turn = shape;
  in_turn.first_trained = 0;
  const Replay replay(schedule, in_turn, times);
  expect(replay.complete, "a schedule that was not checked: ranks wait for each other");
  std::vector<Transfer> transfers = all_transfers(schedule, shape, replay);
  const Needs needs(schedule, shape, replay);
  std::vector<std::vector<Transfer*>> by_rank(schedule.ranks.size());
  for (Transfer& transfer : transfers) {
    transfer.needs = needs.of(transfer.output.made);
    by_rank[at(transfer.output.from)].push_back(&transfer);
    by_rank[at(transfer.output.to)].push_back(&transfer);
  }
  const std::vector<std::size_t> last = last_weight_gradients(schedule, shape);
  Program program;
  for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
    std::vector<ProgramStep>& steps = program.ranks.emplace_back();
    auto next = by_rank[at(rank)].begin();
    std::int32_t actions_so_far = 0;
    const auto put_until = [&](double time) {
      for (; next != by_rank[at(rank)].end() && (*next)->time <= time; ++next) {
        const Output& output = (*next)->output;
        const bool sends = output.from == rank;
        (*next)->position[sends ? 0 : 1] = steps.size();
        steps.push_back({sends ? StepKind::kSend : StepKind::kReceive, output.made,
                         sends ? output.to : output.from});
        steps.back().ahead = !sends && (*next)->needs < actions_so_far;
      }
    };
    const std::vector<Action>& actions = schedule.ranks[at(rank)];
    for (std::size_t i = 0; i < actions.size();) {
      put_until(replay.starts[at(rank)][i]);
      const std::size_t end = end_of_group(actions, i);
      const std::size_t begin = i;
      for (std::size_t j = begin; j < end; ++j) {
        const Output input = input_of(actions[j], shape);
        if (actions[j].kind == ActionKind::kForward && input.goes() && !input.travels())
          steps.push_back({StepKind::kCopy, input.made});
      }
      for (; i < end; ++i) {
        const bool ends_sum =
            makes_weight_gradients(actions[i].kind) && last[at(actions[i].virtual_stage)] == i;
        steps.push_back({StepKind::kAction, actions[i]});
        steps.back().last = ends_sum ? LastMicroBatch::kYes : LastMicroBatch::kNo;
        ++actions_so_far;
      }
      for (std::size_t j = begin; j < end; ++j) {
        const Output output = output_of(actions[j], shape);
        if (goes_back(actions[j].kind) && output.goes() && !output.travels())
          steps.push_back({StepKind::kCopy, output.made});
      }
    }
    if (!transfers.empty()) put_until(transfers.back().time);
  }
  mark_batches(program, by_rank);
  return program;
}

std::vector<ProgramStep> start_early(const std::vector<ProgramStep>& steps, const SlotOf& slot_of,
                                     TransferOrder transfer_order) {
  std::vector<Action> before;  // actions up to here
  std::vector<std::pair<std::size_t, const ProgramStep*>>
      order;                                    // by how many actions stand before it
  std::size_t send_from = 0, receive_from = 0;  // those of a kind keep their order
  const auto makes = [](const Action& action, const Action& made) {
    return action.virtual_stage == made.virtual_stage && action.micro_batch == made.micro_batch &&
           (made.kind == ActionKind::kForward ? action.kind == ActionKind::kForward
                                              : goes_back(action.kind));
  };
  const auto frees_room_of = [&](const Action& action, const Action& made) {
    const std::int32_t stage = made.virtual_stage + (made.kind == ActionKind::kForward ? 1 : -1);
    return makes_weight_gradients(action.kind) &&
           slot_of(action.virtual_stage, action.micro_batch) == slot_of(stage, made.micro_batch);
  };
  for (const ProgramStep& step : steps) {
    if (step.kind == StepKind::kSend) {
      std::size_t from = before.size();
      while (from > send_from && !makes(before[from - 1], step.action)) --from;
      send_from = from;
      if (transfer_order == TransferOrder::kOfRank) receive_from = from;
      order.emplace_back(2 * from, &step);
    } else if (step.kind == StepKind::kReceive) {
      const std::size_t here = before.size();
      const bool ahead = step.ahead && here > 0 && !frees_room_of(before[here - 1], step.action);
      receive_from = std::max(receive_from, here - (ahead ? 1 : 0));
      if (transfer_order == TransferOrder::kOfRank) send_from = receive_from;
      order.emplace_back(2 * receive_from, &step);
    } else if (step.kind == StepKind::kCopy) {
      order.emplace_back(2 * before.size(), &step);
    } else {
      order.emplace_back(2 * before.size() + 1, &step);
      before.push_back(step.action);
    }
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<ProgramStep> early;
  for (const auto& [position, step] : order) early.push_back(*step);
  return early;
}

}  // namespace trireme
