#pragma once

#include <string>
#include <vector>

#include "comm/launch.h"
#include "device/topology.h"

namespace trireme {

/// Agrees with the ranks of this host on who computes where, binds the calling thread and returns
/// the place. Before the first OpenMP region, whose threads inherit it. `threads_per_rank` as in
/// the config, 0: the rank's share. Collective.
Placement place_this_rank(const Launch& launch, std::int64_t threads_per_rank);

/// One line a rank: "rank 0: host a, CPUs 0-3, 4 threads"; on every rank. Collective.
std::vector<std::string> placement_table(const Launch& launch, const Placement& placement);

}  // namespace trireme
