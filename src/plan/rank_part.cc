#include "plan/rank_part.h"

#include <algorithm>
#include <numeric>

#include "base/math.h"

namespace trireme {

namespace {

bool has_shards(const RunConfig::Parallel& config, StagePurpose purpose) {
  return config.zero_stage == 3 || (config.zero_stage > 0 && purpose != StagePurpose::kEvaluation);
}

void take_pipeline_rank(const Pipeline& pipeline, int rank, RankPart& part) {
  part.chunks = pipeline.chunks_of(rank);
  for (const StepPlan& step : pipeline.steps) part.steps.push_back(step.micro_batches);
  part.actions = pipeline.schedule().ranks[static_cast<std::size_t>(rank)];
  const std::vector<std::int32_t>& holder = pipeline.placement;
  const ScheduleShape shape{static_cast<std::int32_t>(pipeline.schedule().ranks.size()),
                            static_cast<std::int32_t>(holder.size()), 1, holder,
                            pipeline.schedule().first_trained};
  std::vector<std::int32_t> chunk_of(holder.size());
  std::int32_t chunks = 0;
  for (std::size_t s = 0; s < holder.size(); ++s) {
    if (holder[s] != rank) continue;
    chunk_of[s] = chunks++;
    for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackwardInput}) {
      const Action action{kind, static_cast<std::int32_t>(s), 0};
      part.sends += output_of(action, shape).travels() ? 1 : 0;
      part.receives += input_of(action, shape).travels() ? 1 : 0;
    }
  }
  for (Action& action : part.actions)
    action.virtual_stage = chunk_of[static_cast<std::size_t>(action.virtual_stage)];
}

}  // namespace

int shard_ranks(const RunConfig::Parallel& config, const MeshShape& mesh, StagePurpose purpose) {
  if (!has_shards(config, purpose)) return 1;
  const std::int64_t all = std::int64_t{mesh.extent(Axis::kData)} * mesh.extent(Axis::kContext);
  const std::int64_t given = config.zero_group.value_or(0);
  return narrow<int>(given == 0 ? all : given);
}

namespace {

/// Rows take no more memory than the whole: those of this rank, and those that come from others.
bool holds_rows(const ModelParams& params, const ParamDistribution& distribution,
                std::int64_t step_tokens) {
  if (step_tokens == 0 || distribution.sharded()) return false;
  const ParamIndex embedding = params.chunks.front().embedding;
  if (embedding == kNoParam) return false;
  const ParamMeta& meta = params.metas[static_cast<std::size_t>(embedding)];
  if (meta.tied_rank.extent > 1 || !meta.trainable) return false;
  for (const ParamMeta& other : params.metas) {
    if (other.shares == embedding) return false;
  }
  return 2 * (step_tokens + 1) <=
         local_shape(meta.shape, meta.cut, distribution.of(meta.view).tensor)[0];
}

}  // namespace

ModelParams RankPart::declare(const ModelConfig& model) const {
  std::vector<ChunkRange> ranges;
  for (const ChunkShape& chunk : chunks) ranges.push_back(chunk.range);
  if (chunks.empty()) ranges.push_back(whole_model(model));
  const std::vector<ExpertPlaces> places =
      expert_places(model, cut.expert.expert.extent, expert_placement);
  ModelParams params = declare_params(model, ranges, {cut.expert.expert, &places});
  if (holds_rows(params, store, step_tokens)) params.metas.front().looked_up_most = step_tokens;
  if (fp8) declare_fp8(params, model, *fp8, cut.tensor, cut.expert.tensor);
  if (nf4) declare_nf4(params);
  if (compute == DType::kF32) {
    for (ParamMeta& param : params.metas) param.in_f32 = false;
  }
  return params;
}

RankPart part_of_rank(const RunConfig::Parallel& config, const MeshShape& mesh, int rank,
                      StagePurpose purpose) {
  const MeshCoordinate at = mesh.coordinate_of(rank);
  const auto axis_rank = [&](Axis axis) {
    return AxisRank{mesh.extent(axis), at[static_cast<std::size_t>(axis)]};
  };
  const AxisRank data = axis_rank(Axis::kData), context = axis_rank(Axis::kContext);
  const int peers = data.extent * context.extent;
  const int peer = data.index * context.extent + context.index;
  const int group = shard_ranks(config, mesh, purpose);

  RankPart part;
  part.cut.tensor = axis_rank(Axis::kTensor);
  part.store =
      dense_distribution(has_shards(config, purpose) ? static_cast<int>(config.zero_stage) : 0,
                         {part.cut.tensor, {group, peer % group}, {peers / group, peer / group}});
  const int expert_ranks = narrow<int>(config.expert * config.expert_tensor);
  const int stage_rank = peer * part.cut.tensor.extent + part.cut.tensor.index;
  const int expert_data = peers * part.cut.tensor.extent / expert_ranks;
  const int expert_group = narrow<int>(std::gcd(std::int64_t{group}, std::int64_t{expert_data}));
  const int expert_peer = stage_rank / expert_ranks;
  part.cut.expert.tensor = {narrow<int>(config.expert_tensor),
                            narrow<int>(stage_rank % config.expert_tensor)};
  part.cut.expert.expert = {narrow<int>(config.expert),
                            narrow<int>(stage_rank / config.expert_tensor % config.expert)};
  part.store.of(MeshView::kExpert) = {part.cut.expert.tensor,
                                      {expert_group, expert_peer % expert_group},
                                      {expert_data / expert_group, expert_peer / expert_group}};
  part.cut.sequence_parallel = config.cuts_tokens(part.cut.tensor.extent);
  part.cut.context = context;
  part.cut.context_method = config.context_method;
  part.purpose = purpose;
  return part;
}

StageShape RankPart::stage(std::int64_t sequences, std::int64_t tokens, Recompute recompute,
                           DeviceKind device) const {
  StageShape shape;
  shape.sequences = sequences;
  shape.tokens = tokens;
  shape.purpose = purpose;
  shape.cut = cut;
  shape.chunks = chunks;
  shape.steps = steps;
  shape.recompute = recompute;
  shape.device = device;
  shape.fp8 = fp8;
  shape.nf4 = nf4;
  // Their memory is that of one pass where activations are made again, and that of a block where
  // gradients or weights are whole for one at a time.
  const bool groups = std::any_of(actions.begin(), actions.end(),
                                  [](const Action& action) { return action.group != 0; });
  shape.turns = groups && cut.expert.ranks() > 1 && recompute == Recompute::kNone &&
                purpose != StagePurpose::kEvaluation && store.accumulates_locally();
  return shape;
}

RankPart part_of_rank(const RunConfig::Parallel& config, const MeshShape& mesh,
                      const Pipeline& pipeline, int rank, StagePurpose purpose) {
  RankPart part = part_of_rank(config, mesh, rank, purpose);
  const int pipeline_rank = mesh.coordinate_of(rank)[static_cast<std::size_t>(Axis::kPipeline)];
  take_pipeline_rank(pipeline, pipeline_rank, part);
  if (purpose == StagePurpose::kTraining && pipeline.splits(pipeline_rank))
    part.purpose = StagePurpose::kTrainingSplit;
  return part;
}

RankPart part_of_rank(const RunConfig& config, const ResolvedRun& run, int rank,
                      StagePurpose purpose) {
  RunConfig::Parallel parallel = config.parallel;
  if (run.zero_group != 0) parallel.zero_group = run.zero_group;
  RankPart part = part_of_rank(parallel, run.mesh, run.pipeline, rank, purpose);
  part.fp8 = run.fp8;
  part.nf4 = config.lora.given() && config.lora.base == LoraBase::kNf4;
  part.compute = run.compute;
  part.expert_placement = run.expert_placement;
  if (run.device == DeviceKind::kCpu && config.precision.wire == DType::kF32)
    part.step_tokens = run.batch.global * config.data.sequence_length;
  return part;
}

}  // namespace trireme
