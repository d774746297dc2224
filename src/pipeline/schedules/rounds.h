#pragma once

#include <vector>

#include "pipeline/plan.h"
#include "pipeline/schedules/greedy.h"

namespace trireme {

/// Plans of a V for these times and this limit, after the search of ZB-V by its authors (Qi et al.
/// 2023): forwards fill all ranks evenly, then in each round every rank runs one B and one F, and a
/// W where it waits long enough. The plans differ in what is long enough. Empty where the limit is
/// too small for rounds.
std::vector<Plan> round_plans(const GreedyTask& task);

}  // namespace trireme
