#pragma once

#include <cstdint>
#include <vector>

#include "config/problem.h"
#include "config/run_config.h"

namespace trireme {

/// Whether a tensor axis of `extent` ranks can shard the model: it divides attention heads and MLP
/// columns, it and the KV heads divide one another, and every rank has a row of the vocabulary.
bool tensor_extent_fits(const ModelConfig& model, std::int64_t extent);

/// Whether the experts of every layer can be dealt out evenly to `expert` ranks, their columns cut
/// evenly in `columns`.
bool expert_extents_fit(const ModelConfig& model, std::int64_t expert, std::int64_t columns);

/// The rules between the extents of a mesh and what they shard: heads, MLP columns, vocabulary,
/// experts and their columns, tokens, ranks that see other tokens. Faults give the nearest legal
/// extent. `data`: its extent.
void check_mesh_rules(const RunConfig& config, std::int64_t data, std::vector<Problem>& problems);

}  // namespace trireme
