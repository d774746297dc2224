#pragma once
// What a schedule costs, before it runs: a virtual clock for each rank.
//
// An action starts when the one before it on its rank has ended and its input is there: F of stage
// s needs F of stage s-1; B and BW of stage s need those of s+1 (unless nothing is trained in s or
// below, Schedule::first_trained) and their own F (or R), W its own B. Between ranks an input is
// there `transfer` after it was made; a transfer takes no time of a rank. Ranks that are more than
// their processors go on more slowly while they compute, not while they wait. Bubble rate and times
// are those of Qi et al. 2023, "Zero Bubble Pipeline Parallelism".

#include <cstdint>
#include <optional>
#include <vector>

#include "pipeline/schedule.h"

namespace trireme {

struct StageTimes {
  double forward = 1, backward_input = 1, backward_weight = 1;
  /// What B spends in making activations again where no R has: R takes that, and the B behind it so
  /// much less. Not given: B makes none again, R takes as long as F and is more work.
  std::optional<double> recompute = {};
};

/// Of one action on one virtual stage. BW takes the sum of B and W, a group the sum of its actions.
struct ActionTimes {
  double forward = 1, backward_input = 1, backward_weight = 1;
  double transfer = 0;
  /// Of each virtual stage where they differ; those above are then their means.
  std::vector<StageTimes> stages = {};
  std::optional<double> recompute = {};  ///< as StageTimes has it
  /// Ranks that compute at once share so many processors evenly; 0: each has its own. In groups of
  /// as many processors each: a rank keeps to those of group (rank mod groups).
  double processors = 0;
  std::size_t processor_groups = 1;
  /// Of an action of a pair without R, or of R.
  [[nodiscard]] double of(ActionKind kind, std::int32_t virtual_stage) const;
  [[nodiscard]] double of(const Action& action) const {
    return of(action.kind, action.virtual_stage);
  }
  /// What an R in front takes off B and BW.
  [[nodiscard]] double saved_by_recompute(std::int32_t virtual_stage) const {
    return of_stage(virtual_stage).recompute.value_or(0);
  }
  [[nodiscard]] double all() const { return forward + backward_input + backward_weight; }
  /// All but transfers.
  friend ActionTimes operator*(double times, ActionTimes actions);

 private:
  [[nodiscard]] StageTimes of_stage(std::int32_t virtual_stage) const;
};

/// Plays a schedule in order of its dependencies. Each (virtual stage, micro-batch) has at most one
/// action of each kind, on its stage's rank; nothing else is assumed.
struct Replay {
  Replay(const Schedule& schedule, const ScheduleShape& shape, const ActionTimes& times);
  std::vector<std::vector<double>> starts, durations;  ///< of each rank and position
  std::vector<double> ends;                            ///< of the last action of each rank
  std::vector<std::size_t> done;  ///< positions played; fewer where ranks wait forever
  bool complete = true;
  /// The output that the next position of a rank waits for, as an F or a B.
  std::vector<Action> waits_for;
};

struct Simulation {
  std::vector<std::vector<double>> starts, durations;  ///< of each rank and position
  /// Longest time of a rank from its first action to the end of its last. Also the time between the
  /// starts of two steps where ranks begin the next as soon as they have ended this one
  /// (parallel.speculative_step): starts that are shifted by it keep every dependency.
  double cost = 0;
  double makespan = 0;     ///< from the first action of all to the end of the last
  double bubble_rate = 0;  ///< (cost - M·V·(F+B+W)) / cost
  /// Time between two steps where all ranks wait for each other, as for the norm: the makespan.
  double step_span = 0;
  std::vector<double> peak;             ///< of each rank: full-stage activations held at once
  std::vector<double> busy;             ///< of each rank: time in actions
  std::vector<std::int64_t> transfers;  ///< of each rank: activations and gradients that it sends
};

/// An activation is what F keeps until B. `w_memory` is what stays from B to W, in activations.
/// Above 1 it is the activation and more that B makes, which has memory of its own: as many pieces
/// as ever wait at once. `r_memory` is what R makes until B, beside the activation, in memory of
/// its own too. Throws InternalError for a schedule that check_schedule would refuse.
Simulation simulate(const Schedule& schedule, const ActionTimes& times, double w_memory = 1,
                    double r_memory = 0);

/// Sizes of virtual stages; where there are none, 1.
using StageSizes = std::vector<double>;
inline double size_of(const StageSizes& sizes, std::int32_t virtual_stage) {
  return sizes.empty() ? 1 : sizes[static_cast<std::size_t>(virtual_stage)];
}

/// Most activations held by a rank, in full stages: simulate's `peak`. Any order of actions.
double peak_of(const std::vector<Action>& actions, const ScheduleShape& shape, double w_memory,
               double r_memory = 0, const StageSizes& sizes = {});

}  // namespace trireme
