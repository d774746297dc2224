#pragma once

#include <vector>

#include "pipeline/plan.h"
#include "pipeline/schedules/greedy.h"

namespace trireme {

/// The plan of least cost among those of `known` that keep the task's memory limit and those that
/// greedy rules make; the first of equal ones. No ranks where none keeps the limit. The same for
/// the same arguments.
Plan shortest_plan(const GreedyTask& task, std::vector<Plan> known);

}  // namespace trireme
