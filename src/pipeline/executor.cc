#include "pipeline/executor.h"

#include <algorithm>

#include "base/error.h"

namespace trireme {

namespace {

bool makes_weight_gradients(const Action& action) {
  return action.kind == ActionKind::kBackwardWeight || action.kind == ActionKind::kBackward;
}

Phase phase_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return Phase::kForward;
    case ActionKind::kBackwardWeight:
      return Phase::kBackwardWeight;
    default:
      return Phase::kBackwardInput;
  }
}

}  // namespace

void execute(const Plan& plan, int rank, StageProgram& stage, Trace& trace) {
  const std::vector<Action>& actions = plan.ranks.at(static_cast<std::size_t>(rank));
  const auto stages = static_cast<std::int32_t>(plan.ranks.size());
  for (auto action = actions.begin(); action != actions.end(); ++action) {
    const int chunk = action->virtual_stage / stages;
    const bool last = std::none_of(action + 1, actions.end(), [&](const Action& later) {
      return makes_weight_gradients(later) && later.virtual_stage == action->virtual_stage;
    });
    const Pass pass = last ? Pass::kLast : Pass::kOneOfSeveral;
    const Span span(trace, phase_of(action->kind), action->micro_batch);
    switch (action->kind) {
      case ActionKind::kForward:
        stage.forward(chunk, action->micro_batch);
        break;
      case ActionKind::kBackwardInput:
        stage.backward_input(chunk, action->micro_batch);
        break;
      case ActionKind::kBackwardWeight:
        stage.backward_weight(chunk, action->micro_batch, pass);
        break;
      case ActionKind::kBackward:
        stage.backward(chunk, action->micro_batch, pass);
        break;
      case ActionKind::kRecompute:
        throw InternalError("a plan that recomputes; stages do so by themselves");
    }
  }
}

}  // namespace trireme
