#include <algorithm>
#include <deque>

#include "pipeline/schedules/schedules.h"

namespace trireme {

namespace {

/// When the passes of micro-batch 0 run on a rank, in slots of one pass: near is the stage on the
/// way in, far the one on the way back. A rank runs six passes for each micro-batch, so the next
/// one follows six slots later and no two passes meet.
struct BuildingBlock {
  int forward_near, forward_far, input_far, input_near;
};

constexpr int kPeriod = 6;

/// The block repeated, each W in the first slot that is free after its B; the order that results.
std::vector<Action> repeat(const BuildingBlock& block, int rank, int ranks, int micro_batches) {
  struct Pass {
    int slot;
    Action action;
  };
  const int near = rank, far = 2 * ranks - 1 - rank;
  std::vector<Pass> passes;
  for (int i = 0; i < micro_batches; ++i) {
    const int shift = kPeriod * i;
    passes.push_back({block.forward_near + shift, {ActionKind::kForward, near, i}});
    passes.push_back({block.forward_far + shift, {ActionKind::kForward, far, i}});
    passes.push_back({block.input_far + shift, {ActionKind::kBackwardInput, far, i}});
    passes.push_back({block.input_near + shift, {ActionKind::kBackwardInput, near, i}});
  }
  std::sort(passes.begin(), passes.end(),
            [](const Pass& a, const Pass& b) { return a.slot < b.slot; });
  std::vector<Action> actions;
  std::deque<Action> weights;
  const auto weight = [&] {
    actions.push_back(weights.front());
    weights.pop_front();
  };
  int slot = 0;
  for (const Pass& pass : passes) {
    for (; slot < pass.slot && !weights.empty(); ++slot) weight();
    slot = pass.slot + 1;
    actions.push_back(pass.action);
    if (pass.action.kind == ActionKind::kBackwardInput) {
      weights.push_back(
          {ActionKind::kBackwardWeight, pass.action.virtual_stage, pass.action.micro_batch});
    }
  }
  while (!weights.empty()) weight();
  return actions;
}

template <class BlockOfRank>
Plan v_plan(const ScheduleRequest& request, BlockOfRank&& block) {
  Plan plan;
  plan.placement = v_placement(request.stages);
  for (int rank = 0; rank < request.stages; ++rank)
    plan.ranks.push_back(repeat(block(rank), rank, request.stages, request.micro_batches));
  return plan;
}

}  // namespace

Plan make_v_half(const ScheduleRequest& request) {
  const int p = request.stages;
  // Where p is even, the way back waits half a period, so that no slot is taken twice.
  const int wait = p % 2 == 0 ? kPeriod / 2 : 0;
  return v_plan(request, [&](int i) {
    return BuildingBlock{2 * i, 3 * p - 2 - i, 3 * p + wait + 2 * i - 1, 6 * p + wait - 2 - i};
  });
}

Plan make_v_min(const ScheduleRequest& request) {
  const int p = request.stages;
  const int wait = p % 3 == 0 ? kPeriod / 3 : 0;  // as above, where three divides p
  return v_plan(request, [&](int i) {
    return BuildingBlock{i, 2 * p - 1 - i, 2 * p + wait + i, 4 * p + wait - 1 - i};
  });
}

}  // namespace trireme
