#include "plan/zero_group.h"

#include <fmt/format.h>

#include "base/human_format.h"
#include "plan/rank_memory.h"

namespace trireme {

namespace {

/// The ranks of a node that see other tokens, where they and others fill several nodes; else 0.
std::int64_t group_of_node(const MeshShape& mesh, std::int64_t node_ranks) {
  const std::int64_t tensor = mesh.extent(Axis::kTensor);
  const std::int64_t stage =
      std::int64_t{mesh.extent(Axis::kData)} * mesh.extent(Axis::kContext) * tensor;
  if (node_ranks == 0 || node_ranks % tensor != 0 || stage % node_ranks != 0) return 0;
  return stage > node_ranks ? node_ranks / tensor : 0;
}

}  // namespace

std::int64_t zero_group_of_node(const RunConfig& config, const NodeFacts& node,
                                const MeshShape& mesh) {
  if (config.parallel.zero_stage == 0 || config.parallel.zero_group.value_or(0) != 0) return 0;
  const std::int64_t group = group_of_node(mesh, node.ranks);
  return group <= 1 || node.bytes_of_rank == 0 ? 0 : group;
}

void choose_zero_group(const RunConfig& config, const NodeFacts& node, ResolvedRun& run,
                       std::vector<std::string>& notes) {
  const std::int64_t group = zero_group_of_node(config, node, run.mesh);
  if (group == 0) return;
  run.zero_group = group;
  const std::int64_t needed = most_memory(config, run).total();
  if (needed > node.bytes_of_rank) {
    run.zero_group = 0;
    notes.push_back(fmt::format(
        "parallel.zero_group is {}, all that see other tokens: a copy on each node of {} ranks "
        "would take {} of the {} of a rank",
        std::int64_t{run.mesh.extent(Axis::kData)} * run.mesh.extent(Axis::kContext), node.ranks,
        format_bytes(needed), format_bytes(node.bytes_of_rank)));
    return;
  }
  notes.push_back(fmt::format(
      "parallel.zero_group is {}, the ranks of a node that see other tokens: each node holds a "
      "copy, and gathers stay on it",
      group));
}

}  // namespace trireme
