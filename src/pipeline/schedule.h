#pragma once
// A pipeline schedule as a value: for each rank the order of its actions, and which rank holds
// which part of the model. Made by generators (pipeline/schedules) or read from a file, proved by
// `check_schedule`, timed by `simulate`, given sends and receives by `lower`.
//
// The model is split into P·V virtual stages, numbered in its order; each of P ranks holds V.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace trireme {

enum class ActionKind : std::uint8_t {
  kForward,         ///< F
  kBackwardInput,   ///< B: gradient of the input
  kBackwardWeight,  ///< W: gradient of the weights, any time after B
  kBackward,        ///< BW: both, the same bits
  kRecompute,       ///< R: recomputes F's activations for B or BW, before it
};

/// B or BW: takes the gradient of the stage's output and leaves that of its input.
constexpr bool goes_back(ActionKind kind) {
  return kind == ActionKind::kBackwardInput || kind == ActionKind::kBackward;
}
/// W or BW: what the micro-batch holds of the stage is free after it.
constexpr bool makes_weight_gradients(ActionKind kind) {
  return kind == ActionKind::kBackwardWeight || kind == ActionKind::kBackward;
}

struct Action {
  ActionKind kind;
  std::int32_t virtual_stage;  ///< 0 ... in order of the model
  std::int32_t micro_batch;
  /// Neighbours in a rank's list with one mark other than 0 run together: they start when the
  /// inputs of both are there, and what they make is there when both have ended.
  std::int32_t group = 0;
  friend bool operator==(const Action&, const Action&) = default;
};

struct Schedule {
  std::vector<std::vector<Action>> ranks;
  /// Rank of each virtual stage. Empty: stage s on rank s mod ranks.
  std::vector<std::int32_t> placement = {};
  /// Each virtual stage runs its micro-batches in ascending order, forward and weight gradients:
  /// then every schedule sums in one order and gives the same bits.
  bool reproducible = true;
  /// Virtual stages below it have nothing to train: their backward actions do nothing, and no
  /// gradient goes to them. Of a run, in no file.
  std::int32_t first_trained = 0;
};

/// Sizes of a schedule; no promise that the schedule is complete.
struct ScheduleShape {
  std::int32_t ranks = 0, virtual_stages = 0, micro_batches = 0;
  std::vector<std::int32_t> placement;  ///< of every virtual stage
  std::int32_t first_trained = 0;
  [[nodiscard]] std::int32_t stages_per_rank() const { return virtual_stages / ranks; }
  [[nodiscard]] std::size_t index(std::int32_t stage, std::int32_t micro_batch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(micro_batches) +
           static_cast<std::size_t>(micro_batch);
  }
  [[nodiscard]] std::size_t pairs() const { return index(virtual_stages, 0); }
};

/// The largest numbers that occur, and the placement. Needs at least one rank, no negative numbers.
ScheduleShape shape_of(const Schedule& schedule);

/// Stage s on rank s mod `ranks`: linear where each rank has one, interleaved where it has more.
std::vector<std::int32_t> interleaved_placement(int ranks, int stages_per_rank);
/// Rank r holds stages r and 2·ranks-1-r: the first and the last share a rank.
std::vector<std::int32_t> v_placement(int ranks);

/// "F", "B", "W", "BW", "R"
std::string_view name_of(ActionKind kind);
/// "F3.7": forward of virtual stage 3 on micro-batch 7.
std::string text_of(const Action& action);

/// One past the last position of the actions that run together with the one at `position`.
std::size_t end_of_group(const std::vector<Action>& actions, std::size_t position);

/// {"ranks": [[["F", virtual_stage, micro_batch, start, group], ...], ...], "placement": [...],
/// "reproducible": true}. Start and group stand where given (`starts` of each action of each rank).
Json schedule_json(const Schedule& schedule,
                   const std::vector<std::vector<double>>* starts = nullptr);

/// The schedule in an object as above. `ranks` alone must be there; other keys are not looked at,
/// starts are ignored. Throws ConfigError: "SOURCE: rank 1, position 4: what is wrong. Legal: ...".
/// What can be known only of the whole is check_schedule's matter.
Schedule parse_schedule(const Json& json, std::string_view source);
/// Reads a file. Throws ConfigError for what it holds, DataError where it cannot be read.
Schedule read_schedule(const std::string& path);

/// 1F1B (PipeDream-flush; Narayanan et al. 2021): min(p-1-i, m) forwards ahead on rank i, then F
/// and backward in turns, then backwards. p = 1 gives F0 BW0 F1 BW1 ...: one micro-batch in flight.
Schedule make_1f1b(int stages, int micro_batches);

/// F alone, of one micro-batch through all stages: an evaluation; check_schedule refuses it.
Schedule make_forward_pass(std::vector<std::int32_t> placement);

}  // namespace trireme
