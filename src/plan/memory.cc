#include "plan/memory.h"

#include <algorithm>
#include <limits>

#include "checkpoint/own_shards.h"
#include "comm/collective_check.h"
#include "comm/communicator.h"
#include "model/block.h"
#include "model/decoder.h"
#include "model/flops.h"
#include "model/param_table.h"
#include "optim/optimizer.h"
#include "store/buckets.h"
#include "store/param_store.h"
#include "store/partial_gradients.h"
#include "store/reduction.h"
#include "store/tied_weight.h"
#include "store/weight_gather.h"

namespace trireme {

namespace {

/// Input ids, targets, positions and document begins of each token.
constexpr std::int64_t kLoaderBytesPerToken = 4 * std::int64_t{sizeof(std::int32_t)};
/// The loader builds a step while one runs, or two while one may come again.
constexpr std::int64_t loader_steps(bool speculative_step) { return speculative_step ? 4 : 2; }

/// What the channels of a rank stage in, each as its largest transfer asks for.
class TransferStaging {
 public:
  TransferStaging(const ModelConfig& model, const MemoryRequest& request, const StoreLayout& layout,
                  const StoreLayout& gradients)
      : model_(model), request_(request), layout_(layout), gradients_(gradients) {}

  [[nodiscard]] std::int64_t bytes(const std::vector<ParamMeta>& params) const {
    return data(params) + tensor(params) + context();
  }

 private:
  using Op = Operation;
  [[nodiscard]] bool training() const { return request_.purpose != StagePurpose::kEvaluation; }
  [[nodiscard]] std::int64_t rows() const {
    return request_.passes.micro * request_.sequence_length / request_.part.cut.context.extent;
  }
  [[nodiscard]] std::int64_t element() const {
    return static_cast<std::int64_t>(size_of(request_.compute));
  }

  [[nodiscard]] std::int64_t data(const std::vector<ParamMeta>& params) const {
    std::int64_t bytes = 0;
    for (const MeshView view : kMeshViews) {
      if (!layout_.has(view)) continue;
      bytes += layout_.sharded() ? shards(view) : training() ? replicas(view, params) : 0;
    }
    return bytes;
  }

  /// Of sums over the ranks that hold the same parameters.
  [[nodiscard]] std::int64_t replicas(MeshView view, const std::vector<ParamMeta>& params) const {
    const int ranks = layout_.distribution(view).replica.extent;
    if (GradientReduction::has_buckets(gradients_, view, request_.wire))
      return staging_bytes(Op::kAllReduce, largest_part(gradients_, view, wire(view)), ranks);
    std::int64_t block = 0;
    for (int i = 0; i < layout_.block_count(); ++i)
      block = std::max(block, gradients_.whole_gradients(i, view).size);
    const bool dense = view == MeshView::kDense;
    const std::int64_t rows =
        dense ? params.front().looked_up_most * params.front().shape[1] : std::int64_t{0};
    return std::max(staging_bytes(Op::kAllReduce, 4 * block, ranks),
                    staging_bytes(Op::kAllGather, 4 * rows, ranks));
  }

  [[nodiscard]] DType wire(MeshView view) const {
    return GradientReduction::wire_of(gradients_, view, request_.wire);
  }
  /// Bytes of one owner's piece of the largest bucket.
  [[nodiscard]] std::int64_t largest_part(const StoreLayout& layout, MeshView view,
                                          DType dtype) const {
    std::int64_t size = 0;
    Buckets::for_each_part_of(layout, {view, dtype, request_.device},
                              [&](int, Slice part) { size = std::max(size, part.size); });
    return size * static_cast<std::int64_t>(size_of(dtype));
  }

  /// Of gathers, and of sums to owners.
  [[nodiscard]] std::int64_t shards(MeshView view) const {
    const int shards = layout_.distribution(view).shard.extent;
    const std::int64_t gather = staging_bytes(
        Op::kAllGather, largest_part(layout_, view, request_.compute) * shards, shards);
    if (!training()) return gather;
    const std::int64_t part = largest_part(gradients_, view, wire(view));
    return gather + staging_bytes(Op::kReduceScatter, part * shards, shards) +
           staging_bytes(Op::kAllReduce, part, layout_.distribution(view).replica.extent);
  }

  [[nodiscard]] std::int64_t tensor(const std::vector<ParamMeta>& params) const {
    const StageCut& cut = request_.part.cut;
    const int ranks = cut.tensor.extent;
    // All-gathers and sums of residual rows take turns on one channel.
    const std::int64_t stream =
        staging_bytes(Op::kAllReduce, rows() * model_.hidden * element(), ranks);
    const std::int64_t heads = PartialGradients::bytes_of(
        params, gradients_, PartialGradients::Of::kSameHeads, cut.sequence_parallel);
    const int copies = replicas_of_units(model_.layer(0).attention.kv_heads, ranks);
    return stream + (training() ? staging_bytes(Op::kAllReduce, heads, copies) : 0);
  }

  [[nodiscard]] std::int64_t context() const {
    const StageCut& cut = request_.part.cut;
    if (cut.context_method != ContextMethod::kAllGather) return 0;  // exchanges are posted whole
    const std::int64_t kv =
        2 * config_of_rank(model_, cut.tensor).layer(0).attention.kv_size() * rows();
    const int ranks = cut.context.extent;
    return training() ? staging_bytes(Op::kAllReduce, 4 * kv * ranks, ranks)
                      : staging_bytes(Op::kAllGather, element() * kv * ranks, ranks);
  }

  const ModelConfig& model_;
  const MemoryRequest& request_;
  const StoreLayout &layout_, &gradients_;
};

}  // namespace

MemoryRequest memory_request(const RunConfig& config, const ResolvedRun& run, StagePurpose purpose,
                             int rank) {
  MemoryRequest request;
  request.passes = run.passes;
  request.sequence_length = config.data.sequence_length;
  request.compute = run.compute;
  request.purpose = purpose;
  request.device = run.device;
  request.recompute = config.parallel.recompute;
  request.sums = run.sums;
  request.wire = config.precision.wire;
  request.attention = &attention_backend(config);
  request.deterministic = config.run.deterministic;
  request.part = part_of_rank(config, run, rank, purpose);
  request.speculative_step = config.parallel.speculative_step;
  if (purpose != StagePurpose::kEvaluation)
    request.saving_max = saving_memory_max(config.checkpoint);
  if (purpose != StagePurpose::kEvaluation) request.sample_tokens = run.sample_tokens;
  return request;
}

std::vector<std::pair<std::string, std::int64_t>> items_of(const RankMemory& memory) {
  std::vector<std::pair<std::string, std::int64_t>> items = {{"parameters", memory.parameters},
                                                             {"gradients", memory.gradients},
                                                             {"optimizer", memory.optimizer},
                                                             {"activations", memory.activations}};
  if (memory.undo > 0) items.emplace_back("undo", memory.undo);
  items.emplace_back("buffers", memory.buffers);
  return items;
}

AttentionLayout attention_layout(const ModelConfig& model, const MemoryRequest& request) {
  return attention_layout(config_of_rank(model, request.part.cut.tensor).layer(0).attention,
                          request.passes.micro, request.sequence_length, request.deterministic);
}

RankMemory estimate_memory(const ModelConfig& model, const MemoryRequest& request) {
  const bool training = request.purpose != StagePurpose::kEvaluation;
  const ModelParams declared = request.part.declare(model);
  const std::vector<ParamMeta>& params = declared.metas;
  const ParamDistribution& distribution = request.part.store;
  const StoreLayout layout(params, distribution),
      gradients(params, distribution, StoreLayout::Of::kGradients);
  const StoreContents contents = training ? Optimizer::contents() : StoreContents{};
  const auto store = ParamStore::bytes_of(params, request.compute, contents, distribution);
  StageShape shape = request.part.stage(request.passes.micro, request.sequence_length,
                                        request.recompute, request.device);
  if (!training) shape.purpose = request.purpose;
  RankMemory memory;
  memory.parameters = store.parameters;
  memory.gradients = store.gradients;
  memory.optimizer = store.optimizer;
  memory.activations = Stage::buffer_bytes(model, shape, request.compute);
  memory.buffers = loader_steps(training && request.speculative_step) * kLoaderBytesPerToken *
                   shape.local_tokens() * request.passes.accumulation;
  memory.buffers += RopeTables::bytes_of(model, request.sequence_length);
  if (request.device == DeviceKind::kCpu && request.sums == ReductionOrder::kRank)
    memory.buffers += TransferStaging(model, request, layout, gradients).bytes(params);
  if (request.attention->bytes != nullptr)
    memory.buffers += request.attention->bytes(attention_layout(model, request), training);
  if (layout.sharded())
    memory.buffers += WeightGather::buffer_bytes(layout, request.compute, request.device);
  if (!training) return memory;
  if (request.sample_tokens > 0) {
    std::int64_t layers = 0;
    for (const ChunkParams& chunk : declared.chunks) layers += std::ssize(chunk.blocks);
    memory.buffers += Decoder::cache_bytes(config_of_rank(model, request.part.cut.tensor), layers,
                                           {request.sample_tokens}, request.compute);
  }
  memory.buffers +=
      GradientReduction::buffer_bytes(params, gradients, request.device, request.wire) +
      TiedWeight::buffer_bytes(params, gradients);
  for (const auto of : {PartialGradients::Of::kTensorAxis, PartialGradients::Of::kSameHeads}) {
    memory.buffers +=
        PartialGradients::bytes_of(params, gradients, of, request.part.cut.sequence_parallel);
  }
  if (request.speculative_step) memory.undo = Optimizer::undo_bytes(params, gradients);
  if (request.saving_max == 0) return memory;
  const State saved = state_boxes(params, contents.states, distribution);
  memory.saving = std::min(staged_bytes_max(saved), request.saving_max);
  if (request.device == DeviceKind::kCpu) memory.buffers += memory.saving;
  return memory;
}

std::int64_t saving_memory_max(const RunConfig::Checkpoint& config) {
  if (config.staging_bytes > 0) return config.staging_bytes;
  return config.async ? std::numeric_limits<std::int64_t>::max() : 2 * kShardBytesMax;
}

std::int64_t checkpoint_bytes(const ModelConfig& model) {
  std::int64_t bytes = sizeof(float);
  for (const OptimizerState& state : Optimizer::contents().states)
    bytes += static_cast<std::int64_t>(size_of(state.dtype));
  return bytes * count_parameters(model).total;
}

}  // namespace trireme
