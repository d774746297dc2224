#pragma once

#include <vector>

#include "pipeline/schedule.h"
#include "pipeline/schedules/greedy.h"

namespace trireme {

/// The cheapest schedule of `known` within the task's memory limit and of the greedy rules; the
/// first of equal ones. The same for the same arguments.
Schedule shortest_schedule(const GreedyTask& task, std::vector<Schedule> known);

}  // namespace trireme
