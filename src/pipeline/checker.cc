#include "pipeline/checker.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>

#include "base/error.h"
#include "pipeline/simulate.h"

namespace trireme {

namespace {

constexpr std::int32_t kNone = -1;
constexpr std::string_view kComplete =
    "F and BW, or F, B and W, of every micro-batch from 0 on every stage";
constexpr auto kForward = static_cast<std::size_t>(ActionKind::kForward);
constexpr auto kInput = static_cast<std::size_t>(ActionKind::kBackwardInput);
constexpr auto kWeight = static_cast<std::size_t>(ActionKind::kBackwardWeight);
constexpr auto kBoth = static_cast<std::size_t>(ActionKind::kBackward);
constexpr auto kAgain = static_cast<std::size_t>(ActionKind::kRecompute);

using Fault = std::optional<ScheduleFault>;

template <class... Args>
ScheduleFault fault(std::string_view rule, std::int64_t rank, std::int64_t position,
                    fmt::format_string<Args...> format, Args&&... args) {
  return {rule, static_cast<std::int32_t>(rank), position,
          fmt::format(format, std::forward<Args>(args)...)};
}

class Checker {
 public:
  explicit Checker(const Schedule& schedule) : schedule_(schedule) {}

  Fault check(const CheckLimits& limits) {
    if (Fault found = check_sizes()) return found;
    shape_ = shape_of(schedule_);
    using Rule = Fault (Checker::*)();
    for (const Rule rule : {&Checker::check_placement, &Checker::check_places,
                            &Checker::check_complete, &Checker::check_order, &Checker::check_groups,
                            &Checker::check_sums, &Checker::check_progress}) {
      if (Fault found = (this->*rule)()) return found;
    }
    return check_memory(limits);
  }

 private:
  /// Numbers that the other rules may index with.
  Fault check_sizes() {
    if (schedule_.ranks.empty())
      return fault("placement", -1, -1, "there are no ranks. Legal: 1 or more");
    std::int64_t actions = 0, stages = std::ssize(schedule_.placement), micro_batches = 0;
    std::int64_t far_rank = 0, far_position = 0, farthest = -1;  // of the largest number
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      for (std::size_t i = 0; i < schedule_.ranks[rank].size(); ++i) {
        const Action& action = schedule_.ranks[rank][i];
        if (action.virtual_stage < 0 || action.micro_batch < 0)
          return fault("place", rank, i, "a number below 0. Legal: 0 or more");
        if (!schedule_.placement.empty() &&
            action.virtual_stage >= std::ssize(schedule_.placement)) {
          return fault("place", rank, i, "the placement has only virtual stages 0 to {}",
                       schedule_.placement.size() - 1);
        }
        stages = std::max<std::int64_t>(stages, std::int64_t{action.virtual_stage} + 1);
        micro_batches = std::max<std::int64_t>(micro_batches, std::int64_t{action.micro_batch} + 1);
        ++actions;
        if (const std::int64_t far = std::max(action.virtual_stage, action.micro_batch);
            far > farthest) {
          farthest = far;
          far_rank = static_cast<std::int64_t>(rank);
          far_position = static_cast<std::int64_t>(i);
        }
      }
    }
    if (actions == 0)
      return fault("complete", -1, -1, "there are no actions. Legal: {}", kComplete);
    // Each pair has at least F and BW; fewer show at once: tables stay small.
    if (stages * micro_batches > 4 * actions + 4096) {
      return fault(
          "complete", far_rank, far_position,
          "the schedule's {} actions are too few for {} virtual stages and {} micro-batches. "
          "Legal: {}",
          actions, stages, micro_batches, kComplete);
    }
    return std::nullopt;
  }

  Fault check_placement() {
    const std::int32_t ranks = shape_.ranks;
    std::vector<std::int32_t> held(schedule_.ranks.size(), 0);
    for (const std::int32_t rank : shape_.placement) {
      if (rank < 0 || rank >= ranks)
        return fault("placement", -1, -1, "it names rank {}. Legal: 0 to {}", rank, ranks - 1);
      ++held[static_cast<std::size_t>(rank)];
    }
    for (std::size_t rank = 0; rank < held.size(); ++rank) {
      if (held[rank] == 0 || held[rank] != held[0]) {
        return fault("placement", rank, -1,
                     "it holds {} virtual stages and rank 0 {}. Legal: equal numbers, at least 1",
                     held[rank], held[0]);
      }
    }
    return std::nullopt;
  }

  Fault check_places() {
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      for (std::size_t i = 0; i < schedule_.ranks[rank].size(); ++i) {
        const std::int32_t stage = schedule_.ranks[rank][i].virtual_stage;
        const std::int32_t home = shape_.placement[static_cast<std::size_t>(stage)];
        if (home != static_cast<std::int32_t>(rank))
          return fault("place", rank, i,
                       "virtual stage {} is on rank {}. Legal: there, or another placement", stage,
                       home);
      }
    }
    return std::nullopt;
  }

  /// Fills the positions of all actions.
  Fault check_complete() {
    for (std::vector<std::int32_t>& of_kind : position_) of_kind.assign(shape_.pairs(), kNone);
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      for (std::size_t i = 0; i < schedule_.ranks[rank].size(); ++i) {
        const Action& action = schedule_.ranks[rank][i];
        std::int32_t& position = at(static_cast<std::size_t>(action.kind), action);
        if (position != kNone)
          return fault("complete", rank, i, "it stands at position {} already. Legal: once",
                       position);
        position = static_cast<std::int32_t>(i);
      }
    }
    for (std::int32_t stage = 0; stage < shape_.virtual_stages; ++stage) {
      for (std::int32_t i = 0; i < shape_.micro_batches; ++i) {
        if (Fault found = check_pair(stage, i)) return found;
      }
    }
    return std::nullopt;
  }

  Fault check_pair(std::int32_t stage, std::int32_t micro_batch) {
    const Action pair{ActionKind::kForward, stage, micro_batch};
    const std::int32_t rank = shape_.placement[static_cast<std::size_t>(stage)];
    const bool both = at(kBoth, pair) != kNone, input = at(kInput, pair) != kNone,
               weight = at(kWeight, pair) != kNone;
    if (at(kForward, pair) == kNone)
      return fault("complete", rank, -1, "F{}.{} is missing. Legal: {}", stage, micro_batch,
                   kComplete);
    if (both && (input || weight)) {
      return fault("complete", rank, at(input ? kInput : kWeight, pair),
                   "BW{}.{} at position {} does this already. Legal: {}", stage, micro_batch,
                   at(kBoth, pair), kComplete);
    }
    if (!both && (!input || !weight)) {
      return fault("complete", rank, -1, "{}{}.{} is missing. Legal: {}",
                   input ? "W" : (weight ? "B" : "B and W, or BW, of "), stage, micro_batch,
                   kComplete);
    }
    return std::nullopt;
  }

  Fault check_order() {
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      for (std::size_t i = 0; i < schedule_.ranks[rank].size(); ++i) {
        const Action& action = schedule_.ranks[rank][i];
        std::size_t before = kForward;
        switch (action.kind) {
          case ActionKind::kForward:
            continue;
          case ActionKind::kBackwardWeight:
            before = kInput;
            break;
          case ActionKind::kBackwardInput:
          case ActionKind::kBackward:
            if (at(kAgain, action) != kNone) before = kAgain;
            break;
          case ActionKind::kRecompute:
            break;
        }
        if (const std::int32_t position = at(before, action);
            position > static_cast<std::int32_t>(i)) {
          return fault("order", rank, i,
                       "{}{}.{} must stand before it, and stands at position {}. Legal: F, then R "
                       "where there is one, then B and W, or BW",
                       name_of(static_cast<ActionKind>(before)), action.virtual_stage,
                       action.micro_batch, position);
        }
      }
    }
    return std::nullopt;
  }

  Fault check_groups() {
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      const std::vector<Action>& actions = schedule_.ranks[rank];
      std::unordered_map<std::int32_t, std::size_t> seen;
      for (std::size_t i = 0; i < actions.size();) {
        const std::size_t end = end_of_group(actions, i);
        if (actions[i].group != 0) {
          if (const auto [other, first] = seen.try_emplace(actions[i].group, i); !first) {
            return fault("group", rank, i,
                         "mark {} stands at position {} too. Legal: neighbours, or another mark",
                         actions[i].group, other->second);
          }
          if (Fault found = check_group(rank, i, end)) return found;
        }
        i = end;
      }
    }
    return std::nullopt;
  }

  Fault check_group(std::size_t rank, std::size_t begin, std::size_t end) {
    const std::vector<Action>& actions = schedule_.ranks[rank];
    const auto backward = [](const Action& a) { return goes_back(a.kind); };
    const auto forward = [](const Action& a) { return a.kind == ActionKind::kForward; };
    const Action &a = actions[begin], &b = actions[end - 1];
    if (end - begin != 2 || !((forward(a) && backward(b)) || (backward(a) && forward(b)))) {
      return fault("group", rank, begin, "{} actions with mark {}. Legal: one F and one B or BW",
                   end - begin, a.group);
    }
    if (a.micro_batch == b.micro_batch && a.virtual_stage == b.virtual_stage)
      return fault("group", rank, begin,
                   "both are of one stage and micro-batch, so one needs the other. Legal: of two "
                   "stages or micro-batches");
    return std::nullopt;
  }

  Fault check_sums() {
    if (!schedule_.reproducible) return std::nullopt;
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      std::unordered_map<std::int32_t, std::int32_t> last[2];
      for (std::size_t i = 0; i < schedule_.ranks[rank].size(); ++i) {
        const Action& action = schedule_.ranks[rank][i];
        const bool forward = action.kind == ActionKind::kForward;
        if (action.kind == ActionKind::kBackwardInput || action.kind == ActionKind::kRecompute)
          continue;
        const auto [found, first] =
            last[forward ? 0 : 1].try_emplace(action.virtual_stage, action.micro_batch);
        if (!first && found->second > action.micro_batch) {
          return fault(
              "reproducible", rank, i,
              "micro-batch {} of this stage came before, so sums differ from other schedules. "
              "Legal: ascending micro-batches, or \"reproducible\": false in the schedule",
              found->second);
        }
        found->second = action.micro_batch;
      }
    }
    return std::nullopt;
  }

  Fault check_progress() {
    const Replay replay(schedule_, shape_, ActionTimes{});
    if (replay.complete) return std::nullopt;
    std::size_t rank = 0;
    while (replay.done[rank] == schedule_.ranks[rank].size()) ++rank;
    // Each waiting rank waits for another; after as many steps as ranks the walk is on the cycle.
    const auto holder = [&](std::size_t of) {
      return static_cast<std::size_t>(
          shape_.placement[static_cast<std::size_t>(replay.waits_for[of].virtual_stage)]);
    };
    for (std::size_t step = 0; step < schedule_.ranks.size(); ++step) rank = holder(rank);
    const Action& needed = replay.waits_for[rank];
    const std::size_t other = holder(rank);
    const Action& stuck = schedule_.ranks[other][replay.done[other]];
    return fault(
        "progress", rank, replay.done[rank],
        "it needs {} of virtual stage {}, micro-batch {}, which stands behind {} (rank {}, "
        "position {}), and that waits, over other ranks or at once, for this action. Legal: an "
        "order in which one of the ranks can always go on",
        needed.kind == ActionKind::kForward ? "the output" : "the input gradient",
        needed.virtual_stage, needed.micro_batch, text_of(stuck), other, replay.done[other]);
  }

  Fault check_memory(const CheckLimits& limits) {
    if (!limits.memory) return std::nullopt;
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      const double peak = peak_of(schedule_.ranks[rank], shape_, limits.w_memory, limits.r_memory);
      if (peak > *limits.memory * (1 + 1e-12)) {
        return fault("memory", rank, -1,
                     "it holds {} full-stage activations and the limit is {}. Legal: a limit of at "
                     "least {} for this rank",
                     peak, *limits.memory, peak);
      }
    }
    return std::nullopt;
  }

  std::int32_t& at(std::size_t kind, const Action& action) {
    return position_[kind][shape_.index(action.virtual_stage, action.micro_batch)];
  }

  const Schedule& schedule_;
  ScheduleShape shape_;
  std::array<std::vector<std::int32_t>, 5> position_;  // by kind and pair
};

}  // namespace

std::string ScheduleFault::text(const Schedule& schedule) const {
  std::string where;
  if (rank >= 0) where = fmt::format("rank {}, ", rank);
  if (position >= 0) {
    where += fmt::format(
        "position {} ({}), ", position,
        text_of(
            schedule.ranks[static_cast<std::size_t>(rank)][static_cast<std::size_t>(position)]));
  }
  return fmt::format("{}rule {}: {}", where, rule, message);
}

std::optional<ScheduleFault> check_schedule(const Schedule& schedule, const CheckLimits& limits) {
  return Checker(schedule).check(limits);
}

void require_valid(const Schedule& schedule, std::string_view source, const CheckLimits& limits) {
  if (const std::optional<ScheduleFault> fault = check_schedule(schedule, limits))
    throw ConfigError("{}: {}", source, fault->text(schedule));
}

}  // namespace trireme
