#pragma once

#include "config/run_config.h"
#include "model/stage.h"
#include "parallel/mesh_shape.h"
#include "parallel/store_layout.h"

namespace trireme {

/// What a rank of the mesh holds of the parameters and computes of each micro-batch. Pure.
struct RankPart {
  StorePlace store;
  StageCut cut;
};

/// ZeRO's stages 1 and 2 have no part in evaluation, where neither moments nor gradients are.
RankPart part_of_rank(const RunConfig::Parallel& config, const MeshShape& mesh, int rank,
                      StagePurpose purpose);

/// Ranks that hold one full copy of what the tensor axis leaves to each: parallel.zero_group, else
/// all that see other tokens; 1 without ZeRO.
int shard_ranks(const RunConfig::Parallel& config, const MeshShape& mesh, StagePurpose purpose);

}  // namespace trireme
