// ZB-H1 and ZB-H2 differ in how many forwards run ahead alone.

#include <algorithm>

#include "pipeline/schedules/schedules.h"

namespace trireme {

namespace {

/// Forwards ahead, then B and F in turns with a W where `kept_max` micro-batches have their B and
/// not their W, then B and W in turns, then the rest. Where none may be kept B and W are one.
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

/// Up to `published` micro-batches from B to W, as the limit allows: with k of them a rank holds
/// ahead + k - 1 activations, and w - 1 beside each of the k.
int kept_max(int published, int ahead, double w_memory, double memory_limit) {
  const double room = (memory_limit * (1 + 1e-12) + 1 - ahead) / std::max(1.0, w_memory);
  return static_cast<int>(std::clamp(room, 0.0, static_cast<double>(published)));
}

}  // namespace

Schedule make_zb_h1(int stages, int micro_batches, double w_memory,
                    std::optional<double> memory_limit, const StageSizes& stage_sizes) {
  Schedule schedule;
  for (int rank = 0; rank < stages; ++rank) {
    const int ahead = stages - rank;
    const double limit = memory_limit.value_or(stages) / size_of(stage_sizes, rank);
    const int kept = kept_max(rank + 1, ahead, w_memory, limit);
    schedule.ranks.push_back(postponed_weights(rank, micro_batches, ahead, kept));
  }
  return schedule;
}

Schedule make_zb_h2(int stages, int micro_batches, double w_memory,
                    std::optional<double> memory_limit, const StageSizes& stage_sizes) {
  Schedule schedule;
  for (int rank = 0; rank < stages; ++rank) {
    const int ahead = 2 * (stages - 1 - rank) + 1, published = 2 * rank + 1;
    const double limit = memory_limit.value_or(2 * stages - 1) / size_of(stage_sizes, rank);
    const int kept = kept_max(published, ahead, w_memory, limit);
    schedule.ranks.push_back(postponed_weights(rank, micro_batches, ahead, kept));
  }
  return schedule;
}

}  // namespace trireme
