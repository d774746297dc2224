#include "pipeline/lowering.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"

namespace trireme {

namespace {

std::size_t at(std::int32_t rank) { return static_cast<std::size_t>(rank); }

/// The output of an action that leaves its rank: who gets it, as one side of an edge.
struct Output {
  Action action;  // kForward or kBackwardInput
  std::int32_t to_stage = -1, from = -1, to = -1;
  [[nodiscard]] bool travels() const { return to >= 0 && from != to; }
};

Output output_of(const Action& action, const PlanShape& shape) {
  Output output;
  const bool forward = action.kind == ActionKind::kForward;
  if (!forward && action.kind != ActionKind::kBackwardInput && action.kind != ActionKind::kBackward)
    return output;
  output.action = {forward ? ActionKind::kForward : ActionKind::kBackwardInput,
                   action.virtual_stage, action.micro_batch};
  output.to_stage = action.virtual_stage + (forward ? 1 : -1);
  if (output.to_stage < 0 || output.to_stage >= shape.virtual_stages) return output;
  output.from = shape.placement[at(action.virtual_stage)];
  output.to = shape.placement[at(output.to_stage)];
  return output;
}

struct Transfer {
  double time;  // when it is made
  Output output;
  std::size_t position[2] = {0, 0};  // its step at the sender and at the receiver
};

/// Every transfer in the one order.
std::vector<Transfer> all_transfers(const Plan& plan, const PlanShape& shape,
                                    const std::vector<std::vector<double>>& starts,
                                    const ActionTimes& times) {
  std::vector<Transfer> transfers;
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const std::vector<Action>& actions = plan.ranks[rank];
    for (std::size_t i = 0; i < actions.size();) {
      const std::size_t end = end_of_group(actions, i);
      double duration = 0;
      for (std::size_t j = i; j < end; ++j) duration += times.of(actions[j].kind);
      const double made = starts[rank][i] + duration;
      for (; i < end; ++i) {
        const Output output = output_of(actions[i], shape);
        if (output.travels()) transfers.push_back({made, output});
      }
    }
  }
  std::stable_sort(transfers.begin(), transfers.end(),
                   [](const Transfer& a, const Transfer& b) { return a.time < b.time; });
  return transfers;
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

Program lower(const Plan& plan, const ActionTimes& times) {
  const PlanShape shape = shape_of(plan);
  const Replay replay(plan, shape, times);
  expect(replay.complete, "a plan that was not checked: ranks wait for each other");
  std::vector<Transfer> transfers = all_transfers(plan, shape, replay.starts, times);
  std::vector<std::vector<Transfer*>> by_rank(plan.ranks.size());
  for (Transfer& transfer : transfers) {
    by_rank[at(transfer.output.from)].push_back(&transfer);
    by_rank[at(transfer.output.to)].push_back(&transfer);
  }
  Program program;
  for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
    std::vector<Step>& steps = program.ranks.emplace_back();
    auto next = by_rank[at(rank)].begin();
    const auto put_until = [&](double time) {
      for (; next != by_rank[at(rank)].end() && (*next)->time <= time; ++next) {
        const Output& output = (*next)->output;
        const bool sends = output.from == rank;
        (*next)->position[sends ? 0 : 1] = steps.size();
        steps.push_back({sends ? StepKind::kSend : StepKind::kReceive, output.action,
                         sends ? output.to : output.from});
      }
    };
    const std::vector<Action>& actions = plan.ranks[at(rank)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      put_until(replay.starts[at(rank)][i]);
      steps.push_back({StepKind::kAction, actions[i]});
    }
    if (!transfers.empty()) put_until(transfers.back().time);
  }
  mark_batches(program, by_rank);
  return program;
}

namespace {

using Fault = std::optional<ProgramFault>;

class ProgramChecker {
 public:
  ProgramChecker(const Plan& plan, const Program& program)
      : plan_(plan), program_(program), shape_(shape_of(plan)), ends_(2 * shape_.pairs()) {}

  Fault check() {
    if (Fault found = check_actions()) return found;
    if (Fault found = check_edges()) return found;
    if (Fault found = check_use()) return found;
    if (Fault found = check_channels()) return found;
    if (Fault found = check_batches()) return found;
    return check_blocking();
  }

 private:
  /// The steps of an edge; -1 where there is none.
  struct Ends {
    std::int64_t send = -1, receive = -1;
  };

  template <class... Args>
  static ProgramFault fault(std::string_view rule, std::int64_t rank, std::int64_t position,
                            fmt::format_string<Args...> format, Args&&... args) {
    return {rule, static_cast<std::int32_t>(rank), position,
            fmt::format(format, std::forward<Args>(args)...)};
  }

  [[nodiscard]] std::size_t edge(const Action& action) const {
    const std::size_t offset = action.kind == ActionKind::kForward ? 0 : shape_.pairs();
    return offset + shape_.index(action.virtual_stage, action.micro_batch);
  }

  Fault check_actions() {
    if (program_.ranks.size() != plan_.ranks.size())
      return fault("actions", -1, -1, "{} ranks, and the plan has {}", program_.ranks.size(),
                   plan_.ranks.size());
    for (std::size_t rank = 0; rank < plan_.ranks.size(); ++rank) {
      const std::vector<Action>& actions = plan_.ranks[rank];
      std::size_t next = 0;
      for (std::size_t i = 0; i < program_.ranks[rank].size(); ++i) {
        const Step& step = program_.ranks[rank][i];
        const bool inside = next > 0 && next < actions.size() && actions[next].group != 0 &&
                            actions[next].group == actions[next - 1].group;
        if (step.kind != StepKind::kAction) {
          if (inside) return fault("actions", rank, i, "a transfer inside a group");
          continue;
        }
        if (next == actions.size() || step.action != actions[next])
          return fault("actions", rank, i, "{} is not the plan's next action",
                       text_of(step.action));
        ++next;
      }
      if (next != actions.size()) {
        return fault("actions", rank, -1, "{} is missing", text_of(actions[next]));
      }
    }
    return std::nullopt;
  }

  Fault check_edges() {
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      for (std::size_t i = 0; i < program_.ranks[rank].size(); ++i) {
        const Step& step = program_.ranks[rank][i];
        if (step.kind == StepKind::kAction) continue;
        const Action& made = step.action;
        const bool known =
            (made.kind == ActionKind::kForward || made.kind == ActionKind::kBackwardInput) &&
            made.group == 0 && made.virtual_stage >= 0 &&
            made.virtual_stage < shape_.virtual_stages && made.micro_batch >= 0 &&
            made.micro_batch < shape_.micro_batches;
        const Output output = known ? output_of(made, shape_) : Output{};
        const bool sends = step.kind == StepKind::kSend;
        if (!output.travels() || (sends ? output.from : output.to) != static_cast<int>(rank) ||
            (sends ? output.to : output.from) != step.peer) {
          return fault("matched", rank, i, "no output of {} goes this way between rank {} and {}",
                       text_of(made), rank, step.peer);
        }
        Ends& ends = ends_[edge(made)];
        std::int64_t& end = sends ? ends.send : ends.receive;
        if (end >= 0) return fault("matched", rank, i, "it is at position {} already", end);
        end = static_cast<std::int64_t>(i);
      }
    }
    return std::nullopt;
  }

  /// Also that no edge is left out, as each action is looked at once.
  Fault check_use() {
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      for (std::size_t i = 0; i < program_.ranks[rank].size(); ++i) {
        const Step& step = program_.ranks[rank][i];
        if (step.kind != StepKind::kAction) continue;
        const auto position = static_cast<std::int64_t>(i);
        const Output output = output_of(step.action, shape_);
        if (output.travels() && ends_[edge(output.action)].send < 0)
          return fault("matched", rank, i, "its output is not sent");
        if (output.travels() && ends_[edge(output.action)].send < position)
          return fault("use", rank, i, "its output is sent before, at position {}",
                       ends_[edge(output.action)].send);
        if (Fault found = check_input(rank, position, step.action)) return found;
      }
    }
    return std::nullopt;
  }

  Fault check_input(std::size_t rank, std::int64_t position, const Action& action) {
    const bool forward = action.kind == ActionKind::kForward;
    if (!forward && action.kind != ActionKind::kBackwardInput &&
        action.kind != ActionKind::kBackward)
      return std::nullopt;
    const std::int32_t from = action.virtual_stage + (forward ? -1 : 1);
    if (from < 0 || from >= shape_.virtual_stages ||
        shape_.placement[at(from)] == static_cast<std::int32_t>(rank))
      return std::nullopt;
    const Action made{forward ? ActionKind::kForward : ActionKind::kBackwardInput, from,
                      action.micro_batch};
    const std::int64_t received = ends_[edge(made)].receive;
    if (received < 0) return fault("matched", rank, position, "its input is not received");
    if (received > position)
      return fault("use", rank, position, "its input is received after it, at position {}",
                   received);
    return std::nullopt;
  }

  Fault check_channels() {
    // Of each channel the position at the receiver of what was sent last.
    std::map<std::tuple<std::size_t, std::int32_t, bool>, std::int64_t> last;
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      for (std::size_t i = 0; i < program_.ranks[rank].size(); ++i) {
        const Step& step = program_.ranks[rank][i];
        if (step.kind != StepKind::kSend) continue;
        const bool forward = step.action.kind == ActionKind::kForward;
        const std::int64_t received = ends_[edge(step.action)].receive;
        std::int64_t& before = last.try_emplace({rank, step.peer, forward}, -1).first->second;
        if (received < before)
          return fault("channel", rank, i, "rank {} receives it before one that is sent earlier",
                       step.peer);
        before = received;
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] std::size_t end_of_batch(std::size_t rank, std::size_t begin) const {
    const std::vector<Step>& steps = program_.ranks[rank];
    std::size_t end = begin + 1;
    while (steps[begin].batch != 0 && end < steps.size() && steps[end].batch == steps[begin].batch)
      ++end;
    return end;
  }

  Fault check_batches() {
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      const std::vector<Step>& steps = program_.ranks[rank];
      for (std::size_t i = 0; i < steps.size();) {
        const std::size_t end = end_of_batch(rank, i);
        if (steps[i].batch != 0) {
          const Step &a = steps[i], &b = steps[end - 1];
          const bool exchange = end - i == 2 && a.kind != StepKind::kAction &&
                                b.kind != StepKind::kAction && a.kind != b.kind && a.peer == b.peer;
          const auto far = [&](const Step& step) {
            const Ends& ends = ends_[edge(step.action)];
            const auto other = at(step.kind == StepKind::kSend ? ends.receive : ends.send);
            return std::pair{other, program_.ranks[at(step.peer)][other].batch};
          };
          if (!exchange) return fault("batch", rank, i, "no send and receive with one peer");
          const auto [first, first_mark] = far(a);
          const auto [second, second_mark] = far(b);
          if (first_mark != a.batch || second_mark != a.batch ||
              std::max(first, second) - std::min(first, second) != 1)
            return fault("batch", rank, i, "rank {} does not join the same two", a.peer);
        }
        i = end;
      }
    }
    return std::nullopt;
  }

  Fault check_blocking() {
    standing_.assign(ends_.size(), false);
    done_.assign(program_.ranks.size(), 0);
    open_.assign(program_.ranks.size(), 0);
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) ready_.push_back(rank);
    for (std::size_t next = 0; next < ready_.size(); ++next) advance(ready_[next]);
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      if (done_[rank] == program_.ranks[rank].size()) continue;
      return fault("blocking", rank, static_cast<std::int64_t>(done_[rank]),
                   "it waits for rank {}, and that never comes to it",
                   program_.ranks[rank][done_[rank]].peer);
    }
    return std::nullopt;
  }

  /// Goes on from where all transfers of the rank's last batch have met their other ends.
  void advance(std::size_t rank) {
    const std::vector<Step>& steps = program_.ranks[rank];
    while (done_[rank] < steps.size()) {
      const std::size_t begin = done_[rank];
      if (steps[begin].kind == StepKind::kAction) {
        ++done_[rank];
        continue;
      }
      const std::size_t end = end_of_batch(rank, begin);
      open_[rank] = end - begin;
      for (std::size_t i = begin; i < end; ++i) meet(rank, steps[i]);
      if (open_[rank] > 0) return;
      done_[rank] = end;
    }
  }

  void meet(std::size_t rank, const Step& step) {
    const std::size_t transfer = edge(step.action);
    if (!standing_[transfer]) {
      standing_[transfer] = true;
      return;
    }
    --open_[rank];
    const std::size_t peer = at(step.peer);
    if (--open_[peer] > 0) return;
    done_[peer] = end_of_batch(peer, done_[peer]);
    ready_.push_back(peer);
  }

  const Plan& plan_;
  const Program& program_;
  PlanShape shape_;
  std::vector<Ends> ends_;      // by edge
  std::vector<bool> standing_;  // by edge: one end is there
  std::vector<std::size_t> done_,
      open_;  // by rank: steps done, transfers of the batch still to meet
  std::vector<std::size_t> ready_;
};

}  // namespace

std::optional<ProgramFault> check_program(const Plan& plan, const Program& program) {
  return ProgramChecker(plan, program).check();
}

}  // namespace trireme
