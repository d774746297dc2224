#include <algorithm>
#include <array>
#include <deque>

#include "pipeline/schedules/schedules.h"

namespace trireme {

namespace {

/// When the passes of micro-batch 0 run on a rank, in slots of one pass.
struct BuildingBlock {
  int forward_near, forward_far, input_far, input_near;
};

constexpr int kPeriod = 6;

std::vector<Action> repeat(const BuildingBlock& block, int rank, int ranks, int micro_batches) {
  const int near = rank, far = 2 * ranks - 1 - rank;
  struct Pass {
    int slot;
    Action action;
  };
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
  int slot = 0;
  for (const Pass& pass : passes) {
    for (; slot < pass.slot && !weights.empty(); ++slot) {
      actions.push_back(weights.front());
      weights.pop_front();
    }
    slot = pass.slot + 1;
    actions.push_back(pass.action);
    if (pass.action.kind == ActionKind::kBackwardInput)
      weights.push_back(
          {ActionKind::kBackwardWeight, pass.action.virtual_stage, pass.action.micro_batch});
  }
  for (; !weights.empty(); weights.pop_front()) actions.push_back(weights.front());
  return actions;
}
}  // namespace

Plan make_v_half(const ScheduleRequest& request) {
  Plan plan;
  const int p = request.stages, delta = p % 2 == 0 ? 3 : 0;
  plan.placement = v_placement(p);
  for (int i = 0; i < p; ++i)
    plan.ranks.push_back(
        repeat({2 * i, 3 * p - 2 - i, 3 * p + delta + 2 * i - 1, 6 * p + delta - 2 - i}, i, p,
               request.micro_batches));
  return plan;
}
Plan make_v_min(const ScheduleRequest& request) {
  Plan plan;
  const int p = request.stages, delta = p % 3 == 0 ? 2 : 0;
  plan.placement = v_placement(p);
  for (int i = 0; i < p; ++i)
    plan.ranks.push_back(repeat({i, 2 * p - 1 - i, 2 * p + delta + i, 4 * p + delta - 1 - i}, i, p,
                                request.micro_batches));
  return plan;
}

}  // namespace trireme
