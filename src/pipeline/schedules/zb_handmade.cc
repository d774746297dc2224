// ZB-H1 and ZB-H2 differ in how many forwards run ahead alone.

#include <algorithm>

#include "pipeline/schedules/schedules.h"

namespace trireme {

namespace {

/// Forwards ahead, then B and F in turns with a W where `kept_max` micro-batches have their B and
/// not their W, then B and W in turns, then the Ws that are left. Where none may be kept B and W
/// are one.
std::vector<Action> postponed_weights(int rank, int micro_batches, int ahead, int kept_max) {
  std::vector<Action> actions;
  int forwards = 0, backwards = 0, weights = 0;
  const auto forward = [&] { actions.push_back({ActionKind::kForward, rank, forwards++}); };
  const auto weight = [&] { actions.push_back({ActionKind::kBackwardWeight, rank, weights++}); };
  const auto backward = [&] {
    const bool both = kept_max == 0;
    actions.push_back(
        {both ? ActionKind::kBackward : ActionKind::kBackwardInput, rank, backwards++});
    if (both) ++weights;
  };
  while (forwards < std::min(ahead, micro_batches)) forward();
  while (forwards < micro_batches) {
    backward();
    if (weights < backwards && backwards - weights == kept_max) weight();
    forward();
  }
  while (backwards < micro_batches) {
    backward();
    if (weights < backwards) weight();
  }
  while (weights < micro_batches) weight();
  return actions;
}

}  // namespace

Plan make_zb_h1(int stages, int micro_batches, double w_memory) {
  Plan plan;
  for (int rank = 0; rank < stages; ++rank) {
    // With k kept it holds p-i+k-1 activations, and w-1 beside each that is kept: p at most.
    const int kept_max = static_cast<int>((rank + 1) / std::max(1.0, w_memory));
    plan.ranks.push_back(postponed_weights(rank, micro_batches, stages - rank, kept_max));
  }
  return plan;
}

Plan make_zb_h2(int stages, int micro_batches) {
  Plan plan;
  for (int rank = 0; rank < stages; ++rank) {
    plan.ranks.push_back(
        postponed_weights(rank, micro_batches, 2 * (stages - 1 - rank) + 1, 2 * rank + 1));
  }
  return plan;
}

}  // namespace trireme
