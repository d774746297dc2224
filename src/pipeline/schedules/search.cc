#include "pipeline/schedules/search.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "pipeline/simulate.h"

namespace trireme {

namespace {

constexpr double kSame = 1e-12;  // relative: times that rounding alone tells apart

/// The shortest schedule so far, and how it got shorter.
class Search {
 public:
  explicit Search(const GreedyTask& task) : task_(task) {
    std::vector<double> work(static_cast<std::size_t>(task.ranks));
    for (std::int32_t stage = 0; stage < std::ssize(task.placement); ++stage) {
      for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackward})
        work[static_cast<std::size_t>(task.placement[static_cast<std::size_t>(stage)])] +=
            task.times.of(kind, stage) * task.micro_batches;
    }
    const auto [least, most] = std::minmax_element(work.begin(), work.end());
    least_work_ = *least;
    most_work_ = *most;
  }

  /// Takes a schedule that keeps the limit and is shorter: of the longest rank first, then of all.
  bool offer(Schedule schedule) {
    if (schedule.ranks.empty()) return false;
    const ScheduleShape shape = shape_of(schedule);
    Replay replay(schedule, shape, task_.times);
    double longest = 0, sum = 0;
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      const double span = replay.ends[rank] - replay.starts[rank].front();
      longest = std::max(longest, span);
      sum += span;
    }
    const bool same = longest <= longest_ * (1 + kSame);
    const bool shorter = longest < longest_ * (1 - kSame);
    if (!shorter && !(same && sum < sum_ * (1 - kSame))) return false;
    for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
      const double limit =
          limit_of_rank(task_.memory_limit, task_.stage_sizes, shape.placement, rank);
      const double peak = peak_of(schedule.ranks[static_cast<std::size_t>(rank)], shape,
                                  task_.w_memory, 0, task_.stage_sizes);
      if (peak > limit * (1 + kSame)) return false;
    }
    starts_ = std::move(replay.starts);
    longest_ = longest;
    sum_ = sum;
    schedule_ = std::move(schedule);
    return true;
  }

  /// How long a rank may wait in a schedule that is no longer.
  [[nodiscard]] double bubble() const { return longest_ - least_work_; }
  /// No rank can be shorter than its work.
  [[nodiscard]] bool ideal() const { return longest_ <= most_work_ * (1 + kSame); }

  /// Moves single Ws while that makes the schedule shorter: those of other ranks that the longest
  /// rank waits for, behind the next F or B; its own into the gaps where it waits.
  void move_weights(int tries) {
    for (bool moved = true; moved && !ideal();) {
      moved = false;
      for (const Move& move : candidates()) {
        if (tries-- == 0) return;
        Schedule schedule = schedule_;
        std::vector<Action>& actions = schedule.ranks[move.rank];
        const auto at = [&](std::size_t i) {
          return actions.begin() + static_cast<std::ptrdiff_t>(i);
        };
        if (move.from < move.to) {
          std::rotate(at(move.from), at(move.from) + 1, at(move.to) + 1);
        } else {
          std::rotate(at(move.to), at(move.from), at(move.from) + 1);
        }
        if (offer(std::move(schedule))) {
          moved = true;
          break;
        }
      }
    }
  }

  [[nodiscard]] bool found() const { return !schedule_.ranks.empty(); }
  Schedule take() { return std::move(schedule_); }

 private:
  struct Move {
    std::size_t rank, from, to;
  };

  [[nodiscard]] double end(std::size_t rank, std::size_t i) const {
    return starts_[rank][i] + task_.times.of(schedule_.ranks[rank][i]);
  }
  [[nodiscard]] double span(std::size_t rank) const {
    return end(rank, schedule_.ranks[rank].size() - 1) - starts_[rank][0];
  }

  [[nodiscard]] bool is_weight(std::size_t rank, std::size_t i) const {
    return schedule_.ranks[rank][i].kind == ActionKind::kBackwardWeight;
  }

  /// Along what the end of the longest rank depends on, from late to early.
  [[nodiscard]] std::vector<Move> candidates() const {
    std::size_t longest = 0;
    for (std::size_t rank = 1; rank < schedule_.ranks.size(); ++rank) {
      if (span(rank) > span(longest)) longest = rank;
    }
    std::vector<Move> moves;
    std::size_t rank = longest, i = schedule_.ranks[rank].size() - 1;
    while (true) {
      const std::vector<Action>& actions = schedule_.ranks[rank];
      if (rank != longest && is_weight(rank, i) && i + 1 < actions.size() &&
          !is_weight(rank, i + 1))
        moves.push_back({rank, i, i + 1});
      const bool waits = i == 0 || end(rank, i - 1) < starts_[rank][i] * (1 - kSame);
      if (!waits) {
        --i;
        continue;
      }
      if (rank == longest && i > 0) add_filler(rank, i, moves);
      const Action& action = actions[i];
      const int step = action.kind == ActionKind::kForward ? -1 : 1;
      const std::int32_t from = action.virtual_stage + step;
      if (from < 0 || from >= std::ssize(task_.placement)) break;
      rank = static_cast<std::size_t>(task_.placement[static_cast<std::size_t>(from)]);
      const bool forward = action.kind == ActionKind::kForward;
      const std::vector<Action>& there = schedule_.ranks[rank];
      const auto made = std::find_if(there.begin(), there.end(), [&](const Action& a) {
        return a.virtual_stage == from && a.micro_batch == action.micro_batch &&
               a.kind != ActionKind::kBackwardWeight && (a.kind == ActionKind::kForward) == forward;
      });
      i = static_cast<std::size_t>(made - there.begin());
    }
    return moves;
  }

  /// The next W after position i whose B stands before it.
  void add_filler(std::size_t rank, std::size_t i, std::vector<Move>& moves) const {
    const std::vector<Action>& actions = schedule_.ranks[rank];
    for (std::size_t j = i + 1; j < actions.size(); ++j) {
      if (!is_weight(rank, j)) continue;
      const auto input = std::find_if(
          actions.begin(), actions.begin() + static_cast<std::ptrdiff_t>(i), [&](const Action& a) {
            return a.kind == ActionKind::kBackwardInput &&
                   a.virtual_stage == actions[j].virtual_stage &&
                   a.micro_batch == actions[j].micro_batch;
          });
      if (input != actions.begin() + static_cast<std::ptrdiff_t>(i)) moves.push_back({rank, j, i});
      return;
    }
  }

  const GreedyTask& task_;
  Schedule schedule_;
  std::vector<std::vector<double>> starts_;
  double longest_ = std::numeric_limits<double>::infinity(), sum_ = 0;  // spans of ranks
  double least_work_ = 0, most_work_ = 0;                               // of a rank
};

std::vector<GreedyRule> rules(const GreedyTask& task) {
  const bool v_shape = std::ssize(task.placement) > task.ranks;
  // As many ahead as memory allows on the first rank, and evenly fewer on those behind.
  const double even = (task.memory_limit - 1) / std::max(1, task.ranks - 1);
  std::vector<GreedyRule> all;
  for (const auto first :
       {GreedyRule::First::kInTurns, GreedyRule::First::kBackward, GreedyRule::First::kForward}) {
    for (const double delay_from : {0.5, 1.0, 0.0, 0.25, 0.1, 0.75, 0.4, 0.05, 0.3, 0.6, 0.9}) {
      for (const auto gap : {GreedyRule::Gap::kWhereBubbleGrows, GreedyRule::Gap::kAlways,
                             GreedyRule::Gap::kNever}) {
        for (const auto keep_lead : {GreedyRule::Lead::kNever, GreedyRule::Lead::kUntilBackward}) {
          for (const double ahead : {0.0, even})
            all.push_back({first, delay_from, gap, keep_lead, ahead,
                           v_shape ? GreedyRule::Stage::kInTurns : GreedyRule::Stage::kFar});
        }
      }
    }
  }
  return all;
}

/// Numbers of B that may wait for their W, the most promising first.
std::vector<std::int32_t> kept_counts(const GreedyTask& task) {
  if (task.w_memory <= 1) return {1};
  const double stages_per_rank = static_cast<double>(std::ssize(task.placement)) / task.ranks;
  const auto most = static_cast<std::int32_t>(std::min<double>(
      task.micro_batches * stages_per_rank, task.memory_limit * stages_per_rank / task.w_memory));
  std::vector<std::int32_t> counts;
  for (std::int32_t kept = most; kept > 0; kept = kept * 3 / 4) counts.push_back(kept);
  counts.push_back(0);
  return counts;
}

}  // namespace

Schedule shortest_schedule(const GreedyTask& task, std::vector<Schedule> known) {
  // Seconds, also for a million actions: those get the rules that win most often.
  const auto actions = 3 * std::ssize(task.placement) * task.micro_batches;
  std::int64_t plays = std::max<std::int64_t>(12, 40'000'000 / actions);
  Search search(task);
  for (Schedule& schedule : known) search.offer(std::move(schedule));
  for (const std::int32_t kept : kept_counts(task)) {
    for (GreedyRule rule : rules(task)) {
      if (search.ideal() || plays == 0) break;
      rule.kept = kept;
      search.offer(greedy_schedule(task, rule, search.bubble() * (1 + kSame)));
      --plays;
    }
  }
  if (!search.found()) {  // the least memory of all, where others took all the plays and more room
    GreedyRule rule = rules(task).front();
    rule.kept = 0;
    search.offer(greedy_schedule(task, rule, search.bubble()));
  }
  if (search.found()) search.move_weights(static_cast<int>(std::min<std::int64_t>(plays, 400)));
  return search.take();
}

}  // namespace trireme
