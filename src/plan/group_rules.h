#pragma once

#include <vector>

#include "config/problem.h"
#include "config/run_config.h"

namespace trireme {

/// Of optimizer.groups: each is the first that some parameter of the run is of; something is
/// trained; and projections whose products are one (fused) are trained together or not at all.
void check_groups(const RunConfig& config, std::vector<Problem>& problems);

}  // namespace trireme
