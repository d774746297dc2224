#pragma once
// A second executor, slow and simple, that shares nothing with the checker: it moves numbers, so a
// wrong order shows as a missing or a wrong one.

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "pipeline/lowering.h"
#include "pipeline/schedule.h"

namespace trireme {

struct NaiveResult {
  std::string fault;         ///< empty where all ran
  std::vector<float> sums;   ///< weight gradient of each stage, in the order in which it was summed
  std::size_t held_max = 0;  ///< most activations that one rank held, from F to W or BW
  friend bool operator==(const NaiveResult&, const NaiveResult&) = default;
};

class NaiveRank {
 public:
  using Key = std::tuple<bool, int, int>;  ///< gradient, stage, micro-batch
  NaiveRank(int rank, int stages, const std::vector<std::int32_t>& placement, NaiveResult& result)
      : rank_(rank), stages_(stages), placement_(placement), result_(result) {}

  /// Whether the inputs of an action are there.
  [[nodiscard]] bool can(const Action& a) const {
    switch (a.kind) {
      case ActionKind::kForward:
        return a.virtual_stage == 0 || values.contains({false, a.virtual_stage - 1, a.micro_batch});
      case ActionKind::kBackwardWeight:
        return kept_.contains({a.virtual_stage, a.micro_batch});
      case ActionKind::kRecompute:
        return held_.contains({a.virtual_stage, a.micro_batch});
      default:
        return held_.contains({a.virtual_stage, a.micro_batch}) &&
               (a.virtual_stage + 1 == stages_ ||
                values.contains({true, a.virtual_stage + 1, a.micro_batch}));
    }
  }

  void run(const Action& a) {
    const int stage = a.virtual_stage, i = a.micro_batch;
    const std::pair pair{stage, i};
    if (placement_[static_cast<std::size_t>(stage)] != rank_) return fail("not its stage");
    switch (a.kind) {
      case ActionKind::kForward: {
        if (!once(a)) return;
        const double in = stage == 0 ? 0.37 * i + 1 : values.at({false, stage - 1, i});
        held_[pair] = in;
        values[{false, stage, i}] = in * 1.01 + 0.03 * stage;
        result_.held_max = std::max(result_.held_max, held_.size() + kept_.size());
        break;
      }
      case ActionKind::kBackwardInput:
      case ActionKind::kBackward: {
        if (!once({ActionKind::kBackwardInput, stage, i})) return;
        const double gradient =
            stage + 1 == stages_ ? 0.01 * held_.at(pair) : values.at({true, stage + 1, i});
        values[{true, stage, i}] = gradient * 0.99 + 0.001 * held_.at(pair);
        kept_[pair] = held_.at(pair) * gradient;
        held_.erase(pair);
        if (a.kind == ActionKind::kBackward) weight(pair);
        break;
      }
      case ActionKind::kBackwardWeight:
        weight(pair);
        break;
      case ActionKind::kRecompute:
        once(a);
        break;
    }
  }

  std::map<Key, double> values;  ///< outputs made here or received

 private:
  void fail(const char* what) {
    if (result_.fault.empty()) result_.fault = what;
  }
  bool once(const Action& a) {
    if (done_.insert({static_cast<int>(a.kind), a.virtual_stage, a.micro_batch}).second)
      return true;
    fail("twice");
    return false;
  }
  void weight(const std::pair<int, int>& pair) {
    result_.sums[static_cast<std::size_t>(pair.first)] += static_cast<float>(kept_.at(pair));
    kept_.erase(pair);
  }

  int rank_, stages_;
  const std::vector<std::int32_t>& placement_;
  NaiveResult& result_;
  std::map<std::pair<int, int>, double> held_, kept_;
  std::set<std::tuple<int, int, int>> done_;
};

/// The schedule with outputs known everywhere at once. Stages and placement of the schedule that it
/// was made from, so that nothing is taken from a damaged one.
inline NaiveResult naive_run(const Schedule& schedule, const ScheduleShape& shape) {
  NaiveResult result;
  result.sums.assign(static_cast<std::size_t>(shape.virtual_stages), 0);
  std::vector<NaiveRank> ranks;
  for (int rank = 0; rank < shape.ranks; ++rank)
    ranks.emplace_back(rank, shape.virtual_stages, shape.placement, result);
  std::vector<std::size_t> next(schedule.ranks.size(), 0);
  for (bool moved = true; moved && result.fault.empty();) {
    moved = false;
    for (std::size_t rank = 0; rank < ranks.size() && result.fault.empty(); ++rank) {
      const std::vector<Action>& actions = schedule.ranks[rank];
      if (next[rank] == actions.size()) continue;
      const std::size_t end = end_of_group(actions, next[rank]);
      bool can = true;
      for (std::size_t i = next[rank]; i < end; ++i) can = can && ranks[rank].can(actions[i]);
      if (!can) continue;
      for (std::size_t i = next[rank]; i < end; ++i) {
        ranks[rank].run(actions[i]);
        const NaiveRank::Key key{actions[i].kind != ActionKind::kForward, actions[i].virtual_stage,
                                 actions[i].micro_batch};
        const auto made = ranks[rank].values.find(key);
        if (made == ranks[rank].values.end()) continue;
        const double value = made->second;
        for (NaiveRank& other : ranks) other.values[key] = value;
      }
      next[rank] = end;
      moved = true;
    }
  }
  for (std::size_t rank = 0; rank < ranks.size() && result.fault.empty(); ++rank) {
    if (next[rank] < schedule.ranks[rank].size()) result.fault = "stuck";
  }
  return result;
}

class NaiveProgramRun {
 public:
  NaiveProgramRun(const Program& program, const ScheduleShape& shape)
      : program_(program), next_(program.ranks.size(), 0) {
    result_.sums.assign(static_cast<std::size_t>(shape.virtual_stages), 0);
    for (int rank = 0; rank < shape.ranks; ++rank)
      ranks_.emplace_back(rank, shape.virtual_stages, shape.placement, result_);
    for (const std::vector<ProgramStep>& steps : program.ranks)
      met_.emplace_back(steps.size(), false);
  }

  NaiveResult run() {
    for (moved_ = true; moved_ && result_.fault.empty();) {
      moved_ = false;
      for (std::size_t rank = 0; rank < ranks_.size() && result_.fault.empty(); ++rank)
        advance(rank);
    }
    for (std::size_t rank = 0; rank < ranks_.size() && result_.fault.empty(); ++rank) {
      if (next_[rank] < program_.ranks[rank].size()) result_.fault = "stuck";
    }
    return result_;
  }

 private:
  using Steps = std::vector<ProgramStep>;

  void advance(std::size_t rank) {
    const Steps& steps = program_.ranks[rank];
    const std::size_t begin = next_[rank];
    if (begin == steps.size()) return;
    if (steps[begin].kind == StepKind::kCopy) {  // values are a rank's, not a stage's, here
      go_to(rank, begin + 1);
    } else if (steps[begin].kind == StepKind::kAction) {
      run_group(rank, begin);
    } else {
      move_batch(rank, begin);
    }
  }

  void go_to(std::size_t rank, std::size_t step) {
    next_[rank] = step;
    moved_ = true;
  }

  void run_group(std::size_t rank, std::size_t begin) {
    const Steps& steps = program_.ranks[rank];
    const std::int32_t group = steps[begin].action.group;
    std::size_t end = begin + 1;
    while (group != 0 && end < steps.size() && steps[end].kind == StepKind::kAction &&
           steps[end].action.group == group)
      ++end;
    for (std::size_t i = begin; i < end; ++i) {
      if (!ranks_[rank].can(steps[i].action)) result_.fault = "no input";
    }
    for (std::size_t i = begin; i < end && result_.fault.empty(); ++i)
      ranks_[rank].run(steps[i].action);
    go_to(rank, end);
  }

  [[nodiscard]] std::size_t end_of_batch(std::size_t rank, std::size_t begin) const {
    const Steps& steps = program_.ranks[rank];
    std::size_t end = begin + 1;
    while (steps[begin].batch != 0 && end < steps.size() && steps[end].batch == steps[begin].batch)
      ++end;
    return end;
  }

  void move_batch(std::size_t rank, std::size_t begin) {
    const std::size_t end = end_of_batch(rank, begin);
    bool all = true;
    for (std::size_t i = begin; i < end && result_.fault.empty(); ++i) {
      if (program_.ranks[rank][i].kind == StepKind::kSend && !met_[rank][i]) send(rank, i);
      all = all && met_[rank][i];
    }
    if (all && result_.fault.empty()) go_to(rank, end);
  }

  void send(std::size_t rank, std::size_t i) {
    const ProgramStep& step = program_.ranks[rank][i];
    const auto peer = static_cast<std::size_t>(step.peer);
    const auto found = other_end(peer, step, static_cast<std::int32_t>(rank));
    if (!found) return;
    const NaiveRank::Key key{step.action.kind != ActionKind::kForward, step.action.virtual_stage,
                             step.action.micro_batch};
    if (!ranks_[rank].values.contains(key)) {
      result_.fault = "nothing to send";
      return;
    }
    ranks_[peer].values[key] = ranks_[rank].values.at(key);
    met_[rank][i] = met_[peer][*found] = moved_ = true;
  }

  /// The step of a batch at which `rank` stands that is the other end of `step`.
  [[nodiscard]] std::optional<std::size_t> other_end(std::size_t rank, const ProgramStep& step,
                                                     std::int32_t peer) const {
    const std::size_t begin = next_[rank];
    if (begin == program_.ranks[rank].size()) return std::nullopt;
    for (std::size_t i = begin; i < end_of_batch(rank, begin); ++i) {
      const ProgramStep& there = program_.ranks[rank][i];
      if (there.kind == StepKind::kReceive && there.peer == peer && there.action == step.action &&
          !met_[rank][i])
        return i;
    }
    return std::nullopt;
  }

  const Program& program_;
  NaiveResult result_;
  std::vector<NaiveRank> ranks_;
  std::vector<std::vector<bool>> met_;
  std::vector<std::size_t> next_;
  bool moved_ = false;
};

/// The program of it with sends and receives that return only when both ends stand there.
inline NaiveResult naive_run(const Program& program, const ScheduleShape& shape) {
  return NaiveProgramRun(program, shape).run();
}

}  // namespace trireme
