#include "plan/memory.h"

#include "model/flops.h"
#include "model/param_table.h"
#include "parallel/partial_gradients.h"
#include "parallel/reduction.h"
#include "parallel/tied_homes.h"
#include "parallel/weight_gather.h"

namespace trireme {

namespace {

/// Input ids, targets, positions and document begins of each token; the loader builds a step while
/// one runs.
constexpr std::int64_t kLoaderBytesPerToken = 4 * std::int64_t{sizeof(std::int32_t)};
constexpr std::int64_t kLoaderSteps = 2;

}  // namespace

MemoryRequest memory_request(const RunConfig& config, const ResolvedRun& run, DType compute,
                             StagePurpose purpose, int rank) {
  MemoryRequest request;
  request.batch = run.batch;
  request.sequence_length = config.data.sequence_length;
  request.compute = compute;
  request.purpose = purpose;
  request.recompute = config.parallel.recompute;
  request.part = part_of_rank(config.parallel, run.mesh,
                              make_pipeline(config.parallel, config.model, run.batch.accumulation),
                              rank, purpose);
  return request;
}

RankMemory estimate_memory(const ModelConfig& model, const MemoryRequest& request) {
  const bool training = request.purpose != StagePurpose::kEvaluation;
  const std::vector<ParamMeta> params = request.part.declare(model).metas;
  const StorePlace& place = request.part.store;
  const StoreLayout layout(params, place);
  const auto store =
      ParamStore::bytes_of(params, request.compute,
                           training ? StorePurpose::kTraining : StorePurpose::kInference, place);
  StageShape shape;
  shape.sequences = request.batch.micro;
  shape.tokens = request.sequence_length;
  shape.purpose = training ? request.part.purpose : request.purpose;
  shape.cut = request.part.cut;
  shape.chunks = request.part.chunks;
  shape.gradients_leave = place.zero_stage >= 2;
  shape.recompute = request.recompute;
  RankMemory memory;
  memory.parameters = store.parameters;
  memory.gradients = store.gradients;
  memory.optimizer = store.optimizer;
  memory.activations = Stage::buffer_bytes(model, shape, request.compute);
  memory.buffers =
      kLoaderSteps * kLoaderBytesPerToken * shape.local_tokens() * request.batch.accumulation;
  if (model.position == PositionKind::kRope) {
    memory.buffers += request.sequence_length * model.head_dim * std::int64_t{sizeof(float)};
  }
  if (layout.sharded()) memory.buffers += WeightGather::buffer_bytes(layout, request.compute);
  if (!training) return memory;
  memory.buffers +=
      GradientReduction::buffer_bytes(layout) + TiedHomes::buffer_bytes(params, layout);
  for (const auto of : {PartialGradients::Of::kTensorAxis, PartialGradients::Of::kSameHeads}) {
    memory.buffers +=
        PartialGradients::bytes_of(params, layout, of, request.part.cut.sequence_parallel);
  }
  return memory;
}

std::int64_t checkpoint_bytes(const ModelConfig& model) {
  return 3 * 4 * count_parameters(model).total;
}

}  // namespace trireme
