#pragma once

#include <vector>

#include "store/param_store.h"

namespace trireme {

/// What ParamStore::state() of such a store names, without its memory: for the plan.
State state_boxes(const std::vector<ParamMeta>& params, const std::vector<OptimizerState>& states,
                  const ParamDistribution& distribution = {});

}  // namespace trireme
