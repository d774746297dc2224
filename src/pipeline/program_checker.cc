#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "pipeline/lowering.h"

namespace trireme {

namespace {

std::size_t at(std::int32_t rank) { return static_cast<std::size_t>(rank); }

using Fault = std::optional<ProgramFault>;

class ProgramChecker {
 public:
  ProgramChecker(const Schedule& schedule, const Program& program)
      : schedule_(schedule),
        program_(program),
        shape_(shape_of(schedule)),
        ends_(2 * shape_.pairs()) {}

  Fault check() {
    using Rule = Fault (ProgramChecker::*)();
    for (const Rule rule :
         {&ProgramChecker::check_actions, &ProgramChecker::check_sums, &ProgramChecker::check_edges,
          &ProgramChecker::check_use, &ProgramChecker::check_memory,
          &ProgramChecker::check_channels, &ProgramChecker::check_batches,
          &ProgramChecker::check_blocking, &ProgramChecker::check_early}) {
      if (Fault found = (this->*rule)()) return found;
    }
    return std::nullopt;
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
    if (program_.ranks.size() != schedule_.ranks.size())
      return fault("actions", -1, -1, "{} ranks, and the schedule has {}", program_.ranks.size(),
                   schedule_.ranks.size());
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      const std::vector<Action>& actions = schedule_.ranks[rank];
      std::size_t next = 0;
      for (std::size_t i = 0; i < program_.ranks[rank].size(); ++i) {
        const ProgramStep& step = program_.ranks[rank][i];
        const bool inside = next > 0 && next < actions.size() && actions[next].group != 0 &&
                            actions[next].group == actions[next - 1].group;
        if (step.kind != StepKind::kAction) {
          if (inside) return fault("actions", rank, i, "a transfer or copy inside a group");
          continue;
        }
        if (next == actions.size() || step.action != actions[next])
          return fault("actions", rank, i, "{} is not the schedule's next action",
                       text_of(step.action));
        ++next;
      }
      if (next != actions.size()) {
        return fault("actions", rank, -1, "{} is missing", text_of(actions[next]));
      }
    }
    return std::nullopt;
  }

  Fault check_sums() {
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      const std::vector<ProgramStep>& steps = program_.ranks[rank];
      std::vector<bool> complete(at(shape_.virtual_stages));  // of what comes behind
      for (std::size_t i = steps.size(); i-- > 0;) {
        const bool adds =
            steps[i].kind == StepKind::kAction && makes_weight_gradients(steps[i].action.kind);
        const std::size_t stage = at(steps[i].action.virtual_stage);
        const bool last = adds && !complete[stage];
        if (last != (steps[i].last == LastMicroBatch::kYes))
          return fault("sums", rank, i, "{}",
                       last ? "more is added to its stage's sums behind it"
                            : "its stage's sums are not complete after it");
        if (adds) complete[stage] = true;
      }
    }
    return std::nullopt;
  }

  Fault check_edges() {
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      for (std::size_t i = 0; i < program_.ranks[rank].size(); ++i) {
        const ProgramStep& step = program_.ranks[rank][i];
        if (step.kind == StepKind::kAction) continue;
        const Action& made = step.action;
        const bool known =
            (made.kind == ActionKind::kForward || made.kind == ActionKind::kBackwardInput) &&
            made.group == 0 && made.virtual_stage >= 0 &&
            made.virtual_stage < shape_.virtual_stages && made.micro_batch >= 0 &&
            made.micro_batch < shape_.micro_batches;
        const Output output = known ? output_of(made, shape_) : Output{};
        const bool sends = step.kind == StepKind::kSend, copies = step.kind == StepKind::kCopy;
        const std::int32_t here = sends || copies ? output.from : output.to;
        const std::int32_t peer = copies ? -1 : sends ? output.to : output.from;
        if (!output.goes() || output.travels() == copies || here != static_cast<int>(rank) ||
            peer != step.peer) {
          return fault("matched", rank, i, "no output of {} goes this way between rank {} and {}",
                       text_of(made), rank, copies ? static_cast<std::int32_t>(rank) : step.peer);
        }
        Ends& ends = ends_[edge(made)];
        const std::int64_t before = sends ? ends.send : ends.receive;
        if (before >= 0) return fault("matched", rank, i, "it is at position {} already", before);
        if (!sends) ends.receive = static_cast<std::int64_t>(i);
        if (sends || copies) ends.send = static_cast<std::int64_t>(i);
      }
    }
    return std::nullopt;
  }

  /// Also that no edge is left out, as each action is looked at once.
  Fault check_use() {
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      for (std::size_t i = 0; i < program_.ranks[rank].size(); ++i) {
        const ProgramStep& step = program_.ranks[rank][i];
        if (step.kind != StepKind::kAction) continue;
        const auto position = static_cast<std::int64_t>(i);
        const Output output = output_of(step.action, shape_);
        if (output.goes() && ends_[edge(output.made)].send < 0)
          return fault("matched", rank, i, "its output is not sent");
        if (output.goes() && ends_[edge(output.made)].send < position)
          return fault("use", rank, i, "its output is sent before, at position {}",
                       ends_[edge(output.made)].send);
        if (Fault found = check_input(rank, position, step.action)) return found;
      }
    }
    return std::nullopt;
  }

  Fault check_input(std::size_t rank, std::int64_t position, const Action& action) {
    const Output input = input_of(action, shape_);
    if (!input.goes()) return std::nullopt;
    const std::int64_t received = ends_[edge(input.made)].receive;
    if (received < 0) return fault("matched", rank, position, "its input is not received");
    if (received > position)
      return fault("use", rank, position, "its input is received after it, at position {}",
                   received);
    return std::nullopt;
  }

  /// A slot's stage and micro-batch (its pair), and those whose output and input gradient are not
  /// sent. -1: none.
  struct Slot {
    std::int64_t held = -1, output = -1, gradient = -1;
    std::int64_t& unsent(ActionKind made) {
      return made == ActionKind::kForward ? output : gradient;
    }
  };
  [[nodiscard]] std::int64_t pair(std::int32_t stage, std::int32_t micro_batch) const {
    return static_cast<std::int64_t>(shape_.index(stage, micro_batch));
  }
  [[nodiscard]] std::string text_of_pair(std::int64_t pair) const {
    if (pair < 0) return "none";
    return fmt::format("micro-batch {} of virtual stage {}", pair % shape_.micro_batches,
                       pair / shape_.micro_batches);
  }

  Fault check_memory() {
    const SlotTable slots = slots_of(schedule_, Holding::kActivations);
    std::vector<std::vector<Slot>> memory;  // of each rank
    for (std::int32_t rank = 0; rank < shape_.ranks; ++rank)
      memory.emplace_back(at(slots.count(rank)));
    const auto slot = [&](std::int32_t stage, std::int32_t micro_batch) -> Slot& {
      return memory[at(shape_.placement[at(stage)])][at(slots.of(stage, micro_batch))];
    };
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      for (std::size_t i = 0; i < program_.ranks[rank].size(); ++i) {
        const StepKind kind = program_.ranks[rank][i].kind;
        const Action& action = program_.ranks[rank][i].action;
        const Output output = output_of(action, shape_);
        const bool arrives = kind == StepKind::kReceive || kind == StepKind::kCopy;
        const std::int32_t stage = arrives ? output.to_stage : action.virtual_stage;
        Slot& theirs = slot(stage, action.micro_batch);
        const std::int64_t own = pair(stage, action.micro_batch);
        const bool begins = action.kind == ActionKind::kForward && kind != StepKind::kSend;
        if (begins && theirs.held < 0) theirs.held = own;
        if (kind != StepKind::kSend && theirs.held != own)
          return fault("memory", rank, i, "its memory is that of {}", text_of_pair(theirs.held));
        if (arrives && !begins && theirs.gradient >= 0)
          return fault("memory", rank, i, "{} is not sent from there",
                       text_of_pair(theirs.gradient));
        Slot& made = slot(action.virtual_stage, action.micro_batch);
        if (kind == StepKind::kAction) {
          if (output.goes()) {
            std::int64_t& unsent = made.unsent(output.made.kind);
            if (unsent >= 0)
              return fault("memory", rank, i, "{} is not sent from there", text_of_pair(unsent));
            unsent = own;
          }
          if (makes_weight_gradients(action.kind)) made.held = -1;
        } else if (kind != StepKind::kReceive) {
          made.unsent(action.kind) = -1;
        }
      }
    }
    return std::nullopt;
  }

  Fault check_channels() {
    // Of each channel the position at the receiver of what was sent last.
    std::map<std::tuple<std::size_t, std::int32_t, bool>, std::int64_t> last;
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      for (std::size_t i = 0; i < program_.ranks[rank].size(); ++i) {
        const ProgramStep& step = program_.ranks[rank][i];
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
    const std::vector<ProgramStep>& steps = program_.ranks[rank];
    std::size_t end = begin + 1;
    while (steps[begin].batch != 0 && end < steps.size() && steps[end].batch == steps[begin].batch)
      ++end;
    return end;
  }

  Fault check_batches() {
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      const std::vector<ProgramStep>& steps = program_.ranks[rank];
      for (std::size_t i = 0; i < steps.size();) {
        const std::size_t end = end_of_batch(rank, i);
        if (steps[i].batch != 0) {
          const ProgramStep &a = steps[i], &b = steps[end - 1];
          const auto transfers = [](const ProgramStep& step) {
            return step.kind == StepKind::kSend || step.kind == StepKind::kReceive;
          };
          const bool exchange =
              end - i == 2 && transfers(a) && transfers(b) && a.kind != b.kind && a.peer == b.peer;
          const auto far = [&](const ProgramStep& step) {
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

  /// Runs the program and notes of each output how many actions of each rank had to end before it.
  Fault check_early() {
    std::vector<std::vector<std::int32_t>> made(ends_.size());
    std::vector<std::vector<std::int32_t>> heard(
        program_.ranks.size(), std::vector<std::int32_t>(program_.ranks.size(), 0));
    std::vector<std::size_t> next(program_.ranks.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < next.size(); ++rank) {
        std::vector<std::int32_t>& own = heard[rank];
        for (; next[rank] < program_.ranks[rank].size(); ++next[rank], moved = true) {
          const ProgramStep& step = program_.ranks[rank][next[rank]];
          if (step.kind == StepKind::kReceive) {
            const std::vector<std::int32_t>& needs = made[edge(step.action)];
            if (needs.empty()) break;
            if (step.ahead && needs[rank] >= own[rank])
              return fault("early", rank, static_cast<std::int64_t>(next[rank]),
                           "it may start before an action that what rank {} sends needs",
                           step.peer);
          }
          if (step.kind != StepKind::kAction) continue;
          if (const Output input = input_of(step.action, shape_); input.goes()) {
            std::vector<std::int32_t>& needs = made[edge(input.made)];
            for (std::size_t other = 0; other < own.size(); ++other)
              own[other] = std::max(own[other], needs[other]);
            needs = {};
          }
          ++own[rank];
          if (const Output output = output_of(step.action, shape_); output.goes())
            made[edge(output.made)] = own;
        }
      }
    }
    return std::nullopt;
  }

  /// Goes on from where all transfers of the rank's last batch have met their other ends.
  void advance(std::size_t rank) {
    const std::vector<ProgramStep>& steps = program_.ranks[rank];
    while (done_[rank] < steps.size()) {
      const std::size_t begin = done_[rank];
      if (steps[begin].kind == StepKind::kAction || steps[begin].kind == StepKind::kCopy) {
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

  void meet(std::size_t rank, const ProgramStep& step) {
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

  const Schedule& schedule_;
  const Program& program_;
  ScheduleShape shape_;
  std::vector<Ends> ends_;      // by edge
  std::vector<bool> standing_;  // by edge: one end is there
  std::vector<std::size_t> done_,
      open_;  // by rank: steps done, transfers of the batch still to meet
  std::vector<std::size_t> ready_;
};

}  // namespace

std::optional<ProgramFault> check_program(const Schedule& schedule, const Program& program) {
  return ProgramChecker(schedule, program).check();
}

}  // namespace trireme
