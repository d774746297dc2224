#include "plan/memory.h"

#include "model/flops.h"
#include "model/param_table.h"
#include "parallel/param_store.h"

namespace trireme {

namespace {

/// Input ids, targets, positions and document begins of each token; the loader builds a step while
/// one runs.
constexpr std::int64_t kLoaderBytesPerToken = 4 * std::int64_t{sizeof(std::int32_t)};
constexpr std::int64_t kLoaderSteps = 2;

}  // namespace

RankMemory estimate_memory(const ModelConfig& model, const ResolvedBatch& batch,
                           std::int64_t sequence_length, DType compute, StagePurpose purpose) {
  const bool training = purpose != StagePurpose::kEvaluation;
  const auto store =
      ParamStore::bytes_of(declare_params(model).metas, compute,
                           training ? StorePurpose::kTraining : StorePurpose::kInference);
  StageShape shape;
  shape.sequences = batch.micro;
  shape.tokens = sequence_length;
  shape.purpose = purpose;
  RankMemory memory;
  memory.parameters = store.parameters;
  memory.gradients = store.gradients;
  memory.optimizer = store.optimizer;
  memory.activations = Stage::buffer_bytes(model, shape, compute);
  memory.buffers =
      kLoaderSteps * kLoaderBytesPerToken * batch.micro * batch.accumulation * sequence_length;
  if (model.position == PositionKind::kRope) {
    memory.buffers += sequence_length * model.head_dim * std::int64_t{sizeof(float)};
  }
  return memory;
}

std::int64_t checkpoint_bytes(const ModelConfig& model) {
  return 3 * 4 * count_parameters(model).total;
}

std::int64_t gradient_traffic_bytes(const ModelConfig& model, std::int64_t data_ranks) {
  const std::int64_t bytes = 4 * count_parameters(model).total;
  return 2 * bytes * (data_ranks - 1) / data_ranks;
}

}  // namespace trireme
