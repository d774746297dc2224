#include "plan/rank_part.h"

#include "base/math.h"

namespace trireme {

namespace {

bool has_shards(const RunConfig::Parallel& config, StagePurpose purpose) {
  return config.zero_stage == 3 || (config.zero_stage > 0 && purpose != StagePurpose::kEvaluation);
}

}  // namespace

int shard_ranks(const RunConfig::Parallel& config, const MeshShape& mesh, StagePurpose purpose) {
  if (!has_shards(config, purpose)) return 1;
  const std::int64_t all = std::int64_t{mesh.extent(Axis::kData)} * mesh.extent(Axis::kContext);
  return narrow<int>(config.zero_group.value_or(all));
}

RankPart part_of_rank(const RunConfig::Parallel& config, const MeshShape& mesh, int rank,
                      StagePurpose purpose) {
  const MeshCoordinate at = mesh.coordinate_of(rank);
  const auto axis_place = [&](Axis axis) {
    return AxisPlace{mesh.extent(axis), at[static_cast<std::size_t>(axis)]};
  };
  const AxisPlace data = axis_place(Axis::kData), context = axis_place(Axis::kContext);
  const int peers = data.extent * context.extent;
  const int peer = data.index * context.extent + context.index;
  const int group = shard_ranks(config, mesh, purpose);

  RankPart part;
  part.store.tensor = axis_place(Axis::kTensor);
  part.store.zero_stage = has_shards(config, purpose) ? static_cast<int>(config.zero_stage) : 0;
  part.store.shard = {group, peer % group};
  part.store.copy = {peers / group, peer / group};
  part.cut.tensor = part.store.tensor;
  part.cut.sequence_parallel =
      part.cut.tensor.extent > 1 && config.sequence_parallel.value_or(true);
  part.cut.context = context;
  part.cut.context_method = config.context_method;
  return part;
}

}  // namespace trireme
