#pragma once
// What evaluations have found, and what checkpoints/best is. Saved with the run's progress.

#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "base/json.h"

namespace trireme {

struct BestLoss {
  static constexpr double kNone = std::numeric_limits<double>::infinity();
  double loss = kNone;                 ///< the least of all evaluations
  std::int64_t evaluations_since = 0;  ///< since then, none better

  /// The checkpoint that was saved for the least loss. Behind a save that failed its loss is above
  /// `loss`: what the next evaluation must beat to be saved is what there is.
  struct Kept {
    double loss = kNone;
    std::int64_t step = -1;  ///< -1: none
    bool alone = false;      ///< no other rule asked for it
    friend bool operator==(const Kept&, const Kept&) = default;
  } kept;

  /// One more evaluation. What is not a number is never better.
  void take(double found);
  friend bool operator==(const BestLoss&, const BestLoss&) = default;
};

Json to_json(const BestLoss& best);
/// Of a checkpoint's scalars; nothing found so far where they do not hold it.
BestLoss best_loss_of(const Json& scalars);

/// One evaluation's loss of each set, as they have names.
struct SetLoss {
  std::string name;
  double loss = 0;
};
/// The loss that decides: of the set `watch`, of the mean over the sets where that is empty.
double watched_loss(std::span<const SetLoss> losses, const std::string& watch);

}  // namespace trireme
