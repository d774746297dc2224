// ZB-H1 and ZB-H2 differ in how many forwards run ahead alone.

#include <algorithm>

#include "pipeline/schedules/schedules.h"

namespace trireme {

namespace {

/// Forwards ahead, then B and F in turns with a W where `in_flight_max` activations are held, then
/// B and W in turns, then the Ws that are left.
std::vector<Action> postponed_weights(int rank, int micro_batches, int ahead, int in_flight_max) {
  std::vector<Action> actions;
  int forwards = 0, backwards = 0, weights = 0;
  const auto forward = [&] { actions.push_back({ActionKind::kForward, rank, forwards++}); };
  const auto backward = [&] { actions.push_back({ActionKind::kBackwardInput, rank, backwards++}); };
  const auto weight = [&] { actions.push_back({ActionKind::kBackwardWeight, rank, weights++}); };
  while (forwards < std::min(ahead, micro_batches)) forward();
  while (forwards < micro_batches) {
    backward();
    if (forwards - weights == in_flight_max) weight();
    forward();
  }
  while (backwards < micro_batches) {
    backward();
    weight();
  }
  while (weights < micro_batches) weight();
  return actions;
}

}  // namespace

Plan make_zb_h1(int stages, int micro_batches) {
  Plan plan;
  for (int rank = 0; rank < stages; ++rank)
    plan.ranks.push_back(postponed_weights(rank, micro_batches, stages - rank, stages));
  return plan;
}

Plan make_zb_h2(int stages, int micro_batches) {
  Plan plan;
  for (int rank = 0; rank < stages; ++rank) {
    plan.ranks.push_back(
        postponed_weights(rank, micro_batches, 2 * (stages - 1 - rank) + 1, 2 * stages - 1));
  }
  return plan;
}

}  // namespace trireme
