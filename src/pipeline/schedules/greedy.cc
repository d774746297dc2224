#include "pipeline/schedules/greedy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>

#include "base/error.h"

namespace trireme {

namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();

struct Chunk {
  std::int32_t stage;
  double size = 1;
  std::int32_t forwards = 0, backwards = 0, weights = 0;
};

struct Rank {
  std::vector<Chunk> chunks;  // in order of the model
  double clock = 0;           // when it is free
  double bubble = 0;          // time that it waited since its first action
  bool started = false;
  ActionKind last = ActionKind::kForward;  // F or B
  std::int32_t last_stage[2] = {-1, -1};   // of F, of B
  std::int32_t kept_most = 1;              // Bs that may wait for their W at once
  double limit = 1;                        // activations of one virtual stage
  std::uint64_t ticket = 0;  // of its place in the queue; older ones count for nothing
};

/// Such a rank waits where its schedule, once known, need not.
bool holds_back(const GreedyRule& rule) {
  return rule.keep_lead != GreedyRule::Lead::kNever || rule.ahead_each > 0;
}

class Greedy {
 public:
  Greedy(const GreedyTask& task, const GreedyRule& rule, double bubble_max)
      : task_(task),
        rule_(rule),
        give_up_(holds_back(rule) ? 2 * bubble_max : bubble_max),
        stages_(static_cast<std::int32_t>(task.placement.size())),
        forward_(pairs(), kUnknown),
        backward_(pairs(), kUnknown),
        ranks_(static_cast<std::size_t>(task.ranks)) {
    schedule_.placement = task.placement;
    schedule_.ranks.resize(ranks_.size());
    for (std::int32_t stage = 0; stage < stages_; ++stage)
      ranks_[home(stage)].chunks.push_back({stage, size_of(task.stage_sizes, stage)});
    // Of a line the ranks behind have fewer micro-batches in flight, and room for more Ws.
    for (std::int32_t rank = 0; rank < task.ranks; ++rank) {
      ranks_[static_cast<std::size_t>(rank)].limit =
          limit_of_rank(task.memory_limit, task.stage_sizes, task.placement, rank) * stages_ /
          task.ranks * (1 + 1e-12);
      const bool line = stages_ == task.ranks;
      ranks_[static_cast<std::size_t>(rank)].kept_most =
          line && rule.kept > 0
              ? std::max(1, (rule.kept * (rank + 1) + task.ranks / 2) / task.ranks)
              : rule.kept;
    }
  }

  Schedule run() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) wake(rank, 0);
    while (!queue_.empty()) {
      const Turn turn = queue_.top();
      queue_.pop();
      if (turn.ticket == ranks_[turn.rank].ticket) decide(turn.rank, turn.time);
      if (bubble_max_ > give_up_) return {};
    }
    for (const Rank& rank : ranks_) {
      for (const Chunk& chunk : rank.chunks) {
        if (chunk.weights < task_.micro_batches) return {};
      }
    }
    return std::move(schedule_);
  }

 private:
  struct Turn {
    double time;
    std::size_t rank;
    std::uint64_t ticket;
    bool operator<(const Turn& other) const {  // the queue gives the largest
      return time != other.time ? time > other.time : rank > other.rank;
    }
  };
  struct Choice {
    Chunk* chunk = nullptr;
    double ready = kUnknown;
  };

  [[nodiscard]] std::size_t pairs() const {
    return task_.placement.size() * static_cast<std::size_t>(task_.micro_batches);
  }
  [[nodiscard]] std::size_t index(std::int32_t stage, std::int32_t i) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(task_.micro_batches) +
           static_cast<std::size_t>(i);
  }
  [[nodiscard]] std::size_t home(std::int32_t stage) const {
    return static_cast<std::size_t>(task_.placement[static_cast<std::size_t>(stage)]);
  }
  [[nodiscard]] double travel(std::int32_t from, std::int32_t to) const {
    return home(from) == home(to) ? 0 : task_.times.transfer;
  }

  void wake(std::size_t rank, double time) {
    queue_.push({time, rank, ++ranks_[rank].ticket});
    wake_time(rank) = time;
  }
  double& wake_time(std::size_t rank) {
    if (wake_times_.size() < ranks_.size()) wake_times_.resize(ranks_.size(), kUnknown);
    return wake_times_[rank];
  }

  [[nodiscard]] double held(const Rank& rank) const {
    double whole = 0, kept = 0, largest = 0;
    for (const Chunk& chunk : rank.chunks) {
      whole += chunk.size * (chunk.forwards - chunk.backwards);
      kept += chunk.size * (chunk.backwards - chunk.weights);
      largest = std::max(largest, chunk.size);
    }
    // Beside activations there is memory for what so many B leave, from the first on.
    const double more = std::max(0.0, task_.w_memory - 1) * rank.kept_most * largest;
    return whole + std::min(1.0, task_.w_memory) * kept + more;
  }
  /// B and W are one action.
  [[nodiscard]] static bool together(const Rank& rank) { return rank.kept_most == 0; }
  /// Room for one more B before a W: there is for the first.
  [[nodiscard]] bool keeps_one_more(const Rank& rank) const {
    std::int32_t kept = 0;
    for (const Chunk& chunk : rank.chunks) kept += chunk.backwards - chunk.weights;
    return task_.w_memory <= 1 || together(rank) || kept < rank.kept_most;
  }

  /// Room for F of this chunk. One activation stays free for each later stage of the rank.
  [[nodiscard]] bool fits(const Rank& rank, const Chunk& chunk) const {
    double needed = 0;
    for (const Chunk* own = &chunk; own <= &rank.chunks.back(); ++own) needed += own->size;
    return held(rank) + needed <= rank.limit;
  }

  /// What the rule keeps between neighbours. On the way back through a V nothing is kept.
  [[nodiscard]] bool held_back(const Chunk& chunk) const {
    if (chunk.stage >= task_.ranks) return false;
    const double behind = task_.ranks - 1 - chunk.stage;
    if (rule_.ahead_each > 0 && chunk.backwards == 0 &&
        chunk.forwards >= 1 + std::ceil(behind * rule_.ahead_each - 1e-9))
      return true;
    const bool keeps =
        rule_.keep_lead == GreedyRule::Lead::kAlways ||
        (rule_.keep_lead == GreedyRule::Lead::kUntilBackward && chunk.backwards == 0);
    if (!keeps || chunk.stage == 0) return false;
    const std::int32_t before = ranks_[home(chunk.stage - 1)].chunks.front().forwards;
    return before < std::min(chunk.forwards + 2, task_.micro_batches);
  }

  [[nodiscard]] double forward_ready(const Chunk& chunk) const {
    if (chunk.forwards == task_.micro_batches) return kUnknown;
    if (chunk.stage == 0) return 0;
    return forward_[index(chunk.stage - 1, chunk.forwards)] + travel(chunk.stage - 1, chunk.stage);
  }
  [[nodiscard]] double backward_ready(const Chunk& chunk) const {
    if (chunk.backwards == chunk.forwards) return kUnknown;
    const double own = forward_[index(chunk.stage, chunk.backwards)];
    if (chunk.stage + 1 == stages_) return own;
    return std::max(own, backward_[index(chunk.stage + 1, chunk.backwards)] +
                             travel(chunk.stage + 1, chunk.stage));
  }

  /// The chunk whose action is ready first; at `time` the preferred one; `last` had its turn.
  template <class Ready>
  Choice earliest(Rank& rank, double time, std::int32_t last, Ready&& ready) {
    Choice best;
    for (Chunk& chunk : rank.chunks) {
      const double at = std::max(time, ready(chunk));
      const bool equal = best.chunk != nullptr && at != kUnknown && at == best.ready;
      const bool preferred = rule_.stage == GreedyRule::Stage::kFar ||
                             (rule_.stage == GreedyRule::Stage::kInTurns && chunk.stage != last);
      if (at < best.ready || (equal && preferred)) best = {&chunk, at};
    }
    return best;
  }

  void decide(std::size_t at, double time) {
    Rank& rank = ranks_[at];
    wake_time(at) = kUnknown;
    const Choice backward = earliest(rank, time, rank.last_stage[1],
                                     [&](const Chunk& chunk) { return backward_ready(chunk); });
    bool full = false;
    const Choice forward = earliest(rank, time, rank.last_stage[0], [&](const Chunk& chunk) {
      const double ready = forward_ready(chunk);
      if (ready == kUnknown || held_back(chunk)) return kUnknown;
      if (fits(rank, chunk)) return ready;
      full = full || ready <= time;
      return kUnknown;
    });
    const bool waits_for_room = backward.ready <= time && !keeps_one_more(rank);
    full = full || waits_for_room;
    const bool backward_now = backward.ready <= time && !waits_for_room;
    const bool forward_now = forward.ready <= time;
    Chunk* const pending = weight(rank);
    // A B that is known to come soon is worth waiting for.
    const bool delays = forward_now && !backward_now &&
                        backward.ready < time + rule_.delay_from * task_.times.forward;
    const bool turn_of_forward =
        rule_.first == GreedyRule::First::kForward ||
        (rule_.first == GreedyRule::First::kInTurns && goes_back(rank.last));
    const double next = std::min(backward.ready, delays ? kUnknown : forward.ready);
    if (backward_now && !(turn_of_forward && (forward_now || (full && pending != nullptr)))) {
      start(at, time, together(rank) ? ActionKind::kBackward : ActionKind::kBackwardInput,
            *backward.chunk);
    } else if (forward_now && !delays) {
      start(at, time, ActionKind::kForward, *forward.chunk);
    } else if (pending != nullptr && weight_now(rank, next, time, full)) {
      start(at, time, ActionKind::kBackwardWeight, *pending);
    } else if (next != kUnknown) {
      wake(at, next);
    }
  }

  /// The chunk whose oldest W waits longest.
  Chunk* weight(Rank& rank) const {
    Chunk* best = nullptr;
    double made = kUnknown;
    for (Chunk& chunk : rank.chunks) {
      if (chunk.weights == chunk.backwards) continue;
      const double at = backward_[index(chunk.stage, chunk.weights)];
      if (at < made) {
        made = at;
        best = &chunk;
      }
    }
    return best;
  }

  [[nodiscard]] bool weight_now(const Rank& rank, double next, double time, bool full) const {
    if (full || next >= time + task_.times.backward_weight) return true;
    switch (rule_.short_gap) {
      case GreedyRule::Gap::kNever:
        return false;
      case GreedyRule::Gap::kAlways:
        return true;
      case GreedyRule::Gap::kWhereBubbleGrows:
        return rank.bubble + (next - rank.clock) > bubble_max_;
    }
    return false;
  }

  void start(std::size_t at, double time, ActionKind kind, Chunk& chunk) {
    Rank& rank = ranks_[at];
    if (rank.started) rank.bubble += time - rank.clock;
    rank.started = true;
    bubble_max_ = std::max(bubble_max_, rank.bubble);
    if (kind != ActionKind::kBackwardWeight) {
      rank.last = kind;
      rank.last_stage[kind == ActionKind::kForward ? 0 : 1] = chunk.stage;
    }
    const double end = time + task_.times.of(kind, chunk.stage);
    rank.clock = end;
    wake(at, end);
    if (kind == ActionKind::kForward) {
      schedule_.ranks[at].push_back({kind, chunk.stage, chunk.forwards});
      forward_[index(chunk.stage, chunk.forwards++)] = end;
      if (chunk.stage + 1 < stages_)
        announce(chunk.stage + 1, end + travel(chunk.stage, chunk.stage + 1));
      if (rule_.keep_lead != GreedyRule::Lead::kNever && chunk.stage + 1 < task_.ranks)
        announce(chunk.stage + 1, time);
    } else if (goes_back(kind)) {
      schedule_.ranks[at].push_back({kind, chunk.stage, chunk.backwards});
      backward_[index(chunk.stage, chunk.backwards++)] = end;
      if (makes_weight_gradients(kind)) ++chunk.weights;
      if (chunk.stage > 0) announce(chunk.stage - 1, end + travel(chunk.stage, chunk.stage - 1));
    } else {
      schedule_.ranks[at].push_back({kind, chunk.stage, chunk.weights++});
    }
  }

  /// The rank of `stage` thinks again then, unless it will before.
  void announce(std::int32_t stage, double time) {
    const std::size_t rank = home(stage);
    const double next = std::max(ranks_[rank].clock, time);
    if (next < wake_time(rank)) wake(rank, next);
  }

  const GreedyTask& task_;
  const GreedyRule& rule_;
  const double give_up_;
  std::int32_t stages_;
  Schedule schedule_;
  std::vector<double> forward_, backward_;  // when made
  std::vector<Rank> ranks_;
  std::vector<double> wake_times_;
  std::priority_queue<Turn> queue_;
  double bubble_max_ = 0;
};

}  // namespace

double limit_of_rank(double limit, const StageSizes& sizes,
                     const std::vector<std::int32_t>& placement, std::int32_t rank) {
  double least = 0, count = 0;
  for (std::size_t s = 0; s < placement.size(); ++s) {
    if (placement[s] != rank) continue;
    least += size_of(sizes, static_cast<std::int32_t>(s));
    count += 1;
  }
  return std::max(limit, least / count);
}

Schedule greedy_schedule(const GreedyTask& task, const GreedyRule& rule, double bubble_max) {
  return Greedy(task, rule, bubble_max).run();
}

}  // namespace trireme
