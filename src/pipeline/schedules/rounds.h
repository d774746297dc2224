#pragma once

#include <vector>

#include "pipeline/schedule.h"
#include "pipeline/schedules/greedy.h"

namespace trireme {

/// Schedules of a V for these times and limit, after the search of ZB-V's authors (Qi et al. 2023):
/// forwards fill all ranks evenly, then in each round every rank runs one B and one F, and a W
/// where it waits long enough, by which they differ. Empty where the limit is too small.
std::vector<Schedule> round_plans(const GreedyTask& task);

}  // namespace trireme
