#include "pipeline/simulate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"
#include "pipeline/lowering.h"

namespace trireme {

namespace {

constexpr double kNotYet = std::numeric_limits<double>::infinity();

/// The clocks of all ranks, and when each output was made.
class Clocks {
 public:
  Clocks(const Schedule& schedule, const ScheduleShape& shape, const ActionTimes& times,
         Replay& replay)
      : schedule_(schedule),
        shape_(shape),
        times_(times),
        replay_(replay),
        forward_(shape.pairs(), kNotYet),
        backward_(shape.pairs(), kNotYet),
        recomputed_(shape.pairs(), false),
        waiting_(schedule.ranks.size(), false) {}

  void run() {
    if (times_.processors > 0) return run_sharing();
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank) ready_.push_back(rank);
    // A rank that has to wait is put back by the one that makes what it waits for.
    for (std::size_t next = 0; next < ready_.size(); ++next) advance(ready_[next]);
  }

 private:
  /// When the output of (stage, micro-batch) is on `rank`.
  double arrival(const std::vector<double>& made, std::int32_t stage, std::int32_t micro_batch,
                 std::int32_t rank) const {
    const bool travels = shape_.placement[static_cast<std::size_t>(stage)] != rank;
    return made[shape_.index(stage, micro_batch)] + (travels ? times_.transfer : 0);
  }

  /// When the input of an action is there; notes what is missing where it is not.
  double input(std::int32_t rank, const Action& a) {
    const std::int32_t stage = a.virtual_stage, micro_batch = a.micro_batch;
    const auto check = [&](double time, ActionKind kind, std::int32_t of) {
      if (time == kNotYet)
        replay_.waits_for[static_cast<std::size_t>(rank)] = {kind, of, micro_batch};
      return time;
    };
    if (a.kind == ActionKind::kForward) {
      if (stage == 0) return 0;
      return check(arrival(forward_, stage - 1, micro_batch, rank), ActionKind::kForward,
                   stage - 1);
    }
    if (a.kind == ActionKind::kBackwardWeight) {
      return check(arrival(backward_, stage, micro_batch, rank), ActionKind::kBackwardInput, stage);
    }
    const double own =
        check(arrival(forward_, stage, micro_batch, rank), ActionKind::kForward, stage);
    if (own == kNotYet || a.kind == ActionKind::kRecompute || stage + 1 == shape_.virtual_stages ||
        stage < shape_.first_trained)
      return own;
    return std::max(own, check(arrival(backward_, stage + 1, micro_batch, rank),
                               ActionKind::kBackwardInput, stage + 1));
  }

  double duration(const Action& action) const {
    const bool saved = goes_back(action.kind) &&
                       recomputed_[shape_.index(action.virtual_stage, action.micro_batch)];
    return times_.of(action) - (saved ? times_.saved_by_recompute(action.virtual_stage) : 0);
  }

  void wake(std::int32_t stage) {
    const auto rank = static_cast<std::size_t>(shape_.placement[static_cast<std::size_t>(stage)]);
    if (!waiting_[rank]) return;
    waiting_[rank] = false;
    ready_.push_back(rank);
  }

  void make(const Action& action, double end) {
    const std::int32_t stage = action.virtual_stage;
    if (action.kind == ActionKind::kRecompute) {
      recomputed_[shape_.index(stage, action.micro_batch)] = true;
    } else if (action.kind == ActionKind::kForward) {
      forward_[shape_.index(stage, action.micro_batch)] = end;
      if (stage + 1 < shape_.virtual_stages) wake_if_awaited(stage + 1, action);
    } else if (goes_back(action.kind)) {
      backward_[shape_.index(stage, action.micro_batch)] = end;
      if (stage > 0)
        wake_if_awaited(stage - 1, {ActionKind::kBackwardInput, stage, action.micro_batch});
    }
  }

  void wake_if_awaited(std::int32_t stage, Action made) {
    made.group = 0;
    const auto rank = static_cast<std::size_t>(shape_.placement[static_cast<std::size_t>(stage)]);
    if (replay_.waits_for[rank] == made) wake(stage);
  }

  void advance(std::size_t rank) {
    const std::vector<Action>& actions = schedule_.ranks[rank];
    std::size_t& position = replay_.done[rank];
    double& clock = replay_.ends[rank];
    while (position < actions.size()) {
      const std::size_t end = end_of_group(actions, position);
      double start = clock, duration_of_all = 0;
      for (std::size_t i = position; i < end; ++i) {
        start = std::max(start, input(static_cast<std::int32_t>(rank), actions[i]));
        if (start == kNotYet) {
          waiting_[rank] = true;
          return;
        }
        replay_.durations[rank][i] = duration(actions[i]);
        duration_of_all += replay_.durations[rank][i];
      }
      clock = start + duration_of_all;
      for (; position < end; ++position) {
        replay_.starts[rank][position] = start;
        make(actions[position], clock);
      }
    }
  }

  // --- fewer processors than ranks -------------------------------------------------------------

  /// The action, or group, that a rank computes.
  struct Current {
    std::size_t end = 0;           // of its positions; 0: the rank waits
    double left = 0, seconds = 0;  // of work, on a processor of its own
  };

  /// From one event to the next, an event being that an action ends or an input arrives.
  void run_sharing() {
    std::vector<Current> currents(schedule_.ranks.size());
    const std::size_t groups = times_.processor_groups;
    const double each = times_.processors / static_cast<double>(groups);
    std::vector<double> speeds(groups);
    for (double now = 0, next = 0; next != kNotYet; now = next) {
      next = kNotYet;
      std::vector<double> active(groups, 0);
      for (std::size_t rank = 0; rank < currents.size(); ++rank) {
        next = std::min(next, begin(rank, now, currents[rank]));
        if (currents[rank].end > 0) ++active[rank % groups];
      }
      for (std::size_t group = 0; group < groups; ++group)
        speeds[group] = std::min(1.0, each / std::max(1.0, active[group]));
      for (std::size_t rank = 0; rank < currents.size(); ++rank)
        if (currents[rank].end > 0)
          next = std::min(next, now + currents[rank].left / speeds[rank % groups]);
      if (next == kNotYet) return;
      for (std::size_t rank = 0; rank < currents.size(); ++rank) {
        Current& current = currents[rank];
        if (current.end == 0) continue;
        const double speed = speeds[rank % groups];
        const bool ends = now + current.left / speed <= next;
        current.left -= (next - now) * speed;
        if (ends) finish(rank, next, current);
      }
    }
  }

  /// Where the next inputs of a rank that waits are there it begins; the time at which they will
  /// be, or never as far as is known.
  double begin(std::size_t rank, double now, Current& current) {
    const std::vector<Action>& actions = schedule_.ranks[rank];
    const std::size_t position = replay_.done[rank];
    if (current.end > 0 || position == actions.size()) return kNotYet;
    const std::size_t end = end_of_group(actions, position);
    double start = now;
    for (std::size_t i = position; i < end && start != kNotYet; ++i)
      start = std::max(start, input(static_cast<std::int32_t>(rank), actions[i]));
    if (start > now) return start;
    current = {end, 0, 0};
    for (std::size_t i = position; i < end; ++i) {
      replay_.starts[rank][i] = now;
      replay_.durations[rank][i] = duration(actions[i]);
      current.seconds += replay_.durations[rank][i];
    }
    current.left = current.seconds;
    return kNotYet;
  }

  void finish(std::size_t rank, double now, Current& current) {
    std::size_t& position = replay_.done[rank];
    const double taken = now - replay_.starts[rank][position];
    for (; position < current.end; ++position) {
      if (current.seconds > 0) replay_.durations[rank][position] *= taken / current.seconds;
      make(schedule_.ranks[rank][position], now);
    }
    replay_.ends[rank] = now;
    current = {};
  }

  const Schedule& schedule_;
  const ScheduleShape& shape_;
  const ActionTimes& times_;
  Replay& replay_;
  std::vector<double> forward_, backward_;  // when made, by shape_.index
  std::vector<bool> recomputed_;            // by R, by shape_.index
  std::vector<bool> waiting_;
  std::vector<std::size_t> ready_;  // ranks in the order in which they may go on
};

}  // namespace

StageTimes ActionTimes::of_stage(std::int32_t virtual_stage) const {
  if (!stages.empty()) return stages[static_cast<std::size_t>(virtual_stage)];
  return {forward, backward_input, backward_weight, recompute};
}

ActionTimes operator*(double times, ActionTimes actions) {
  for (double* const each : {&actions.forward, &actions.backward_input, &actions.backward_weight})
    *each *= times;
  if (actions.recompute) *actions.recompute *= times;
  for (StageTimes& stage : actions.stages) {
    for (double* const each : {&stage.forward, &stage.backward_input, &stage.backward_weight})
      *each *= times;
    if (stage.recompute) *stage.recompute *= times;
  }
  return actions;
}

double ActionTimes::of(ActionKind kind, std::int32_t virtual_stage) const {
  const StageTimes t = of_stage(virtual_stage);
  switch (kind) {
    case ActionKind::kForward:
      return t.forward;
    case ActionKind::kRecompute:
      return t.recompute.value_or(t.forward);
    case ActionKind::kBackwardInput:
      return t.backward_input;
    case ActionKind::kBackwardWeight:
      return t.backward_weight;
    case ActionKind::kBackward:
      return t.backward_input + t.backward_weight;
  }
  throw InternalError("an action of no kind");
}

Replay::Replay(const Schedule& schedule, const ScheduleShape& shape, const ActionTimes& times)
    : ends(schedule.ranks.size(), 0),
      done(schedule.ranks.size(), 0),
      waits_for(schedule.ranks.size(), Action{ActionKind::kForward, -1, -1}) {
  for (const std::vector<Action>& actions : schedule.ranks) starts.emplace_back(actions.size(), 0);
  durations = starts;
  Clocks(schedule, shape, times, *this).run();
  for (std::size_t rank = 0; rank < done.size(); ++rank)
    complete = complete && done[rank] == schedule.ranks[rank].size();
}

double peak_of(const std::vector<Action>& actions, const ScheduleShape& shape, double w_memory,
               double r_memory, const StageSizes& sizes) {
  // Activations held whole, kept for W alone, recomputed by R; whole numbers where all sizes are 1.
  double whole = 0, kept = 0, kept_most = 0, again = 0, again_most = 0, peak = 0;
  std::set<std::size_t> pairs_again;
  for (std::size_t position = 0; position < actions.size();) {
    const std::size_t end = end_of_group(actions, position);
    for (std::size_t i = position; i < end; ++i) {
      const ActionKind kind = actions[i].kind;
      const double size = size_of(sizes, actions[i].virtual_stage);
      if (kind == ActionKind::kForward) whole += size;
      const std::size_t pair = shape.index(actions[i].virtual_stage, actions[i].micro_batch);
      if (kind == ActionKind::kRecompute && pairs_again.insert(pair).second) again += size;
      again_most = std::max(again_most, again);
      if (goes_back(kind) && pairs_again.erase(pair) > 0) again -= size;
    }
    peak = std::max(peak, whole + std::min(1.0, w_memory) * kept);
    for (std::size_t i = position; i < end; ++i) {
      const double size = size_of(sizes, actions[i].virtual_stage);
      if (goes_back(actions[i].kind)) whole -= size;
      if (actions[i].kind == ActionKind::kBackwardInput) kept += size;
      if (actions[i].kind == ActionKind::kBackwardWeight) kept -= size;
      kept_most = std::max(kept_most, kept);
    }
    position = end;
  }
  peak += std::max(0.0, w_memory - 1) * kept_most + r_memory * again_most;
  return peak * shape.ranks / shape.virtual_stages;
}

Simulation simulate(const Schedule& schedule, const ActionTimes& times, double w_memory,
                    double r_memory) {
  const ScheduleShape shape = shape_of(schedule);
  Replay replay(schedule, shape, times);
  expect(replay.complete, "a schedule that was not checked: ranks wait for each other");
  Simulation result;
  result.starts = std::move(replay.starts);
  result.durations = std::move(replay.durations);
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const std::vector<Action>& actions = schedule.ranks[rank];
    if (!actions.empty())
      result.cost = std::max(result.cost, replay.ends[rank] - result.starts[rank].front());
    result.makespan = std::max(result.makespan, replay.ends[rank]);
    result.peak.push_back(peak_of(actions, shape, w_memory, r_memory));
    double busy = 0;
    std::int64_t sent = 0;
    for (const double duration : result.durations[rank]) busy += duration;
    for (const Action& action : actions) {
      if (output_of(action, shape).travels()) ++sent;
    }
    result.busy.push_back(busy);
    result.transfers.push_back(sent);
  }
  const double work =
      static_cast<double>(shape.micro_batches) * shape.stages_per_rank() * times.all();
  // The same sum in another order: its rounding is no bubble.
  const double idle = result.cost - work;
  result.bubble_rate = std::abs(idle) < 1e-12 * result.cost ? 0 : idle / result.cost;
  result.step_span = result.makespan;
  return result;
}

}  // namespace trireme
