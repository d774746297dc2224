#pragma once

#include "config/run_config.h"
#include "model/stage.h"
#include "parallel/mesh_shape.h"
#include "plan/expert_files.h"
#include "plan/pipeline.h"
#include "plan/resolve.h"
#include "store/store_layout.h"

namespace trireme {

/// What a rank of the mesh holds of the parameters and computes of each micro-batch. Pure.
struct RankPart {
  ParamDistribution store;
  StageCut cut;
  std::vector<ChunkShape> chunks;   ///< of the pipeline rank; none: the whole model
  std::vector<std::int64_t> steps;  ///< StageShape::steps
  /// This rank's actions in a step of the largest batch, with virtual_stage replaced by the local
  /// chunk.
  std::vector<Action> actions;
  /// Of a micro-batch, activations and gradients to and from chunks on other pipeline ranks.
  int sends = 0, receives = 0;
  /// What the stage is made for: kTraining becomes kTrainingSplit where the rank has B and W apart.
  StagePurpose purpose = StagePurpose::kTraining;
  /// The most, of all ranks that sum gradients; 0 where an embedding's is held whole, however few
  /// they are.
  std::int64_t step_tokens = 0;
  std::optional<Fp8Precision> fp8 = {};  ///< of the layers' products
  bool nf4 = false;                      ///< the base of adapters stands in NF4
  DType compute = DType::kF32;           ///< that weights are read in
  ExpertPlacement expert_placement = {};

  /// Of the parameters of those chunks.
  [[nodiscard]] ModelParams declare(const ModelConfig& model) const;
  /// The stage that it computes with, in micro-batches of `sequences` of `tokens`.
  [[nodiscard]] StageShape stage(std::int64_t sequences, std::int64_t tokens, Recompute recompute,
                                 DeviceKind device = DeviceKind::kCpu) const;
};

/// Of a run.
RankPart part_of_rank(const RunConfig& config, const ResolvedRun& run, int rank,
                      StagePurpose purpose);
/// ZeRO's stages 1 and 2 have no part in evaluation, where neither moments nor gradients are.
RankPart part_of_rank(const RunConfig::Parallel& config, const MeshShape& mesh,
                      const Pipeline& pipeline, int rank, StagePurpose purpose);
/// Of a rank that holds the whole model.
RankPart part_of_rank(const RunConfig::Parallel& config, const MeshShape& mesh, int rank,
                      StagePurpose purpose);

/// Ranks of a full copy of a tensor-parallel shard: parallel.zero_group, or all; 1 without ZeRO.
int shard_ranks(const RunConfig::Parallel& config, const MeshShape& mesh, StagePurpose purpose);

}  // namespace trireme
