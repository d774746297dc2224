#pragma once

#include <string>
#include <vector>

#include "config/run_config.h"
#include "plan/resolve.h"

namespace trireme {

/// What choose_zero_group would try: a group on each node; 0: nothing.
std::int64_t zero_group_of_node(const RunConfig& config, const NodeFacts& node,
                                const MeshShape& mesh);

/// Where parallel.zero_group is not given: the ranks of a node, where those that see other tokens
/// fill several nodes and each node alone is known to have the memory for a copy. Gathers and
/// reductions of a step then stay on a node, and what crosses the network is a sum of each rank's
/// own shard, once. Else, and without ZeRO, 0: all that see other tokens. Sets run.zero_group; says
/// so in `notes`.
void choose_zero_group(const RunConfig& config, const NodeFacts& node, ResolvedRun& run,
                       std::vector<std::string>& notes);

}  // namespace trireme
