#pragma once
// What an executor makes of a program, with numbers: steps started early, memory of slots that is
// written over, transfers that are done no sooner than somebody waits for them and both ends have
// started (a rendezvous). What moves too early or too late shows as another sum, NaN or a stop.

#include <cmath>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "naive_run.h"
#include "pipeline/lowering.h"

namespace trireme {

class EarlyRun {
 public:
  /// kOfRank: a transfer is done no sooner than all that either rank has started before it.
  EarlyRun(const Schedule& schedule, const Program& program,
           TransferOrder order = TransferOrder::kOfChannel)
      : order_(order),
        shape_(shape_of(schedule)),
        slots_(slots_of(schedule, Holding::kActivations)),
        waiting_(slots_of(schedule, Holding::kGradients)),
        recomputed_(slots_of(schedule, Holding::kRecomputed)) {
    for (const auto& steps : program.ranks) {
      steps_.push_back(start_early(
          steps, [&](int stage, int micro_batch) { return slots_.of(stage, micro_batch); }, order));
    }
    lines_.resize(steps_.size());
    result_.sums.assign(static_cast<std::size_t>(shape_.virtual_stages), 0);
  }

  NaiveResult run() {
    std::vector<std::size_t> next(steps_.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < steps_.size(); ++rank) {
        while (next[rank] < steps_[rank].size() && take(steps_[rank][next[rank]])) {
          ++next[rank];
          moved = true;
        }
      }
    }
    for (std::size_t rank = 0; rank < steps_.size(); ++rank)
      if (next[rank] < steps_[rank].size()) result_.fault = "stuck";
    return result_;
  }

 private:
  using Cell = std::tuple<int, int, Boundary>;  ///< rank, slot, what
  struct Transfer {
    std::vector<Cell> sends, receives;  ///< of a channel, as they were started
    std::size_t done = 0;
  };

  /// The two gradients share memory.
  Cell cell(int stage, int micro_batch, Boundary which) {
    if (which == Boundary::kInputGradient) which = Boundary::kOutputGradient;
    return {rank_of(stage), slots_.of(stage, micro_batch), which};
  }
  Cell left(const Action& made) {
    return cell(made.virtual_stage, made.micro_batch,
                made.kind == ActionKind::kForward ? Boundary::kOutput : Boundary::kInputGradient);
  }
  Cell taken(const Action& made) {
    const bool forward = made.kind == ActionKind::kForward;
    return cell(made.virtual_stage + (forward ? 1 : -1), made.micro_batch,
                forward ? Boundary::kInput : Boundary::kOutputGradient);
  }
  [[nodiscard]] int rank_of(int stage) const {
    return shape_.placement[static_cast<std::size_t>(stage)];
  }
  /// Where R leaves what B reads, B or BW what W reads.
  using Kept = std::pair<int, int>;  ///< rank, slot
  [[nodiscard]] Kept slot_in(const SlotTable& slots, const Action& a) const {
    return {rank_of(a.virtual_stage), slots.of(a.virtual_stage, a.micro_batch)};
  }
  Transfer& channel(const Action& made) {
    return channels_[{made.virtual_stage, made.kind == ActionKind::kForward}];
  }

  /// The next of a channel: both ends have come, and it is each rank's turn.
  bool finish_next(Transfer& transfer) {
    if (transfer.done == transfer.sends.size() || transfer.done == transfer.receives.size())
      return false;
    const Cell &from = transfer.sends[transfer.done], &to = transfer.receives[transfer.done];
    if (order_ == TransferOrder::kOfRank) {
      const auto line = [&](const Cell& cell) -> std::deque<const Transfer*>& {
        return lines_[static_cast<std::size_t>(std::get<0>(cell))];
      };
      if (line(from).front() != &transfer || line(to).front() != &transfer) return false;
      line(from).pop_front();
      line(to).pop_front();
    }
    values_[to] = values_.at(from);
    ++transfer.done;
    return true;
  }
  /// Transfers are done as soon as they may, whoever waits for them.
  void finish_all() {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& [name, transfer] : channels_) moved = finish_next(transfer) || moved;
    }
  }

  /// False where a transfer of this cell is under way and its other end has not come.
  bool await(const Cell& cell) {
    if (order_ == TransferOrder::kOfRank) finish_all();
    for (auto& [name, transfer] : channels_) {
      const auto is_open = [&cell, &done = transfer.done](const std::vector<Cell>& cells) {
        for (std::size_t i = done; i < cells.size(); ++i)
          if (cells[i] == cell) return true;
        return false;
      };
      while (is_open(transfer.sends) || is_open(transfer.receives)) {
        if (!finish_next(transfer)) return false;
      }
    }
    return true;
  }

  void start(std::vector<Cell>& end, const Transfer& transfer, const Cell& cell) {
    end.push_back(cell);
    lines_[static_cast<std::size_t>(std::get<0>(cell))].push_back(&transfer);
  }
  bool take(const ProgramStep& step) {
    switch (step.kind) {
      case StepKind::kSend:
        start(channel(step.action).sends, channel(step.action), left(step.action));
        return true;
      case StepKind::kReceive:
        if (step.action.kind != ActionKind::kForward && !await(taken(step.action))) return false;
        start(channel(step.action).receives, channel(step.action), taken(step.action));
        values_[taken(step.action)] = std::nan("");
        return true;
      case StepKind::kCopy:
        if (step.action.kind != ActionKind::kForward && !await(taken(step.action))) return false;
        values_[taken(step.action)] = values_.at(left(step.action));
        return true;
      case StepKind::kAction:
        return act(step.action);
    }
    return false;
  }

  bool act(const Action& a) {
    const int stage = a.virtual_stage;
    const auto at = [&](Boundary which) { return cell(stage, a.micro_batch, which); };
    if (a.kind == ActionKind::kForward) {
      if (!await(at(Boundary::kInput)) || !await(at(Boundary::kOutput))) return false;
      if (stage == 0) values_[at(Boundary::kInput)] = 0.37 * a.micro_batch + 1;
      values_[at(Boundary::kOutput)] = values_.at(at(Boundary::kInput)) * 1.01 + 0.03 * stage;
      return true;
    }
    // The input stays where it came to, as a stage keeps it until the weights' gradients.
    double held = values_.at(at(Boundary::kInput));
    if (a.kind == ActionKind::kRecompute) {
      again_[slot_in(recomputed_, a)] = held;
      has_r_.insert({stage, a.micro_batch});
      return true;
    }
    if (goes_back(a.kind)) {
      if (has_r_.contains({stage, a.micro_batch})) held = again_.at(slot_in(recomputed_, a));
      if (!await(at(Boundary::kOutputGradient)) || !await(at(Boundary::kInputGradient)))
        return false;
      const double gradient = stage + 1 == shape_.virtual_stages
                                  ? 0.01 * held
                                  : values_.at(at(Boundary::kOutputGradient));
      values_[at(Boundary::kInputGradient)] = gradient * 0.99 + 0.001 * held;
      kept_[slot_in(waiting_, a)] = gradient;
    }
    if (makes_weight_gradients(a.kind))
      result_.sums[static_cast<std::size_t>(stage)] +=
          static_cast<float>(held * kept_.at(slot_in(waiting_, a)));
    return true;
  }

  const TransferOrder order_;
  const ScheduleShape shape_;
  const SlotTable slots_, waiting_, recomputed_;
  std::vector<std::vector<ProgramStep>> steps_;
  std::vector<std::deque<const Transfer*>> lines_;  // of each rank: started, not done
  std::map<Cell, double> values_;
  std::map<Kept, double> kept_, again_;
  std::set<std::pair<int, int>> has_r_;
  std::map<std::pair<int, bool>, Transfer> channels_;
  NaiveResult result_;
};

}  // namespace trireme
