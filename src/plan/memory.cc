#include "plan/memory.h"

#include <algorithm>
#include <array>
#include <limits>

#include "checkpoint/own_shards.h"
#include "comm/collective_check.h"
#include "comm/communicator.h"
#include "comm/gpu_channel.h"
#include "config/adapters.h"
#include "model/block.h"
#include "model/decoder.h"
#include "model/flops.h"
#include "model/gpu_scratch_bytes.h"
#include "model/param_table.h"
#include "optim/optimizer.h"
#include "parallel/rank_order_channel.h"
#include "store/buckets.h"
#include "store/param_store.h"
#include "store/partial_gradients.h"
#include "store/quantized_refresh.h"
#include "store/reduction.h"
#include "store/tied_weight.h"
#include "store/weight_gather.h"

namespace trireme {

namespace {

/// Input ids, targets, positions and document begins of each token; its two numbers for dropout.
std::int64_t loader_bytes_per_token(const ModelConfig& model, bool training) {
  return (training && model.numbers_tokens() ? 6 : 4) * std::int64_t{sizeof(std::int32_t)};
}
/// The loader builds a step while one runs, or two while one may come again.
constexpr std::int64_t loader_steps(bool speculative_step) { return speculative_step ? 4 : 2; }

/// Axes along which this rank's GPU is connected with others.
int connected_axes(const ModelConfig& model, const MemoryRequest& request) {
  const RankPart& part = request.part;
  const Distribution& dense = part.store.of(MeshView::kDense);
  std::vector<bool> with_others = {dense.shard.extent > 1, dense.replica.extent > 1,
                                   part.cut.tensor.extent > 1, part.cut.context.extent > 1,
                                   part.sends + part.receives > 0};
  if (model.has_experts()) {
    const Distribution& experts = part.store.of(MeshView::kExpert);
    const ExpertCut& cut = part.cut.expert;
    const bool coded = request.optimizer.state == MomentType::k8bit;
    with_others.insert(with_others.end(),
                       {experts.shard.extent > 1, experts.replica.extent > 1, cut.ranks() > 1,
                        (part.fp8 || adapts_experts(model) || coded) && cut.tensor.extent > 1});
  }
  if (request.optimizer.kind == OptimizerKind::kMuon) {
    for (const MeshView view : kMeshViews) {
      const Distribution& parts = part.store.of(view);
      with_others.push_back(parts.tensor.extent * parts.shard.extent > 1);
    }
  }
  return static_cast<int>(std::count(with_others.begin(), with_others.end(), true));
}

/// What the channels of a rank stage in, each as its largest transfer asks for.
class TransferStaging {
 public:
  TransferStaging(const ModelConfig& model, const MemoryRequest& request,
                  const std::vector<ParamMeta>& params, const StoreLayout& layout,
                  const StoreLayout& gradients)
      : model_(model), request_(request), params_(params), layout_(layout), gradients_(gradients) {}

  /// Within a host, in memory that its ranks share.
  [[nodiscard]] std::int64_t host_bytes() const {
    const LargestSums sums = this->sums();
    const StageCut& cut = request_.part.cut;
    std::int64_t bytes = 0;
    for (const MeshView view : kMeshViews) {
      if (layout_.has(view)) bytes += data_bytes(view, sums);
    }
    // All-gathers and sums of residual rows take turns on one channel.
    bytes += staging_bytes(Op::kAllReduce, sums.tensor, cut.tensor.extent) +
             staging_bytes(Op::kAllReduce, sums.same_heads, copies_of_heads()) +
             staging_bytes(Op::kAllReduce, sums.expert_tensor, cut.expert.tensor.extent);
    if (cut.context_method != ContextMethod::kAllGather) return bytes;  // exchanges go whole
    return bytes + (training() ? staging_bytes(Op::kAllReduce, sums.context, cut.context.extent)
                               : staging_bytes(Op::kAllGather, element() * kv_of_all(),
                                               cut.context.extent));
  }

  /// On a GPU, for sums in rank order.
  [[nodiscard]] std::int64_t gpu_bytes() const {
    const LargestSums sums = this->sums();
    const StageCut& cut = request_.part.cut;
    const Distribution& dense = layout_.distribution(MeshView::kDense);
    return RankOrderChannel::memory_bytes(sums.data_shards, dense.shard.extent) +
           RankOrderChannel::memory_bytes(sums.data_copies, dense.replica.extent) +
           RankOrderChannel::memory_bytes(sums.tensor, cut.tensor.extent) +
           RankOrderChannel::memory_bytes(sums.same_heads, copies_of_heads()) +
           RankOrderChannel::memory_bytes(sums.expert_tensor, cut.expert.tensor.extent) +
           RankOrderChannel::memory_bytes(sums.context, cut.context.extent);
  }

  [[nodiscard]] LargestSums sums() const {
    const StageCut& cut = request_.part.cut;
    LargestSums sums;
    sums.tensor = rows() * widest_rows() * element();
    if (!training()) return sums;
    for (const MeshView view : kMeshViews) {
      if (!layout_.has(view)) continue;
      const bool whole =
          !layout_.sharded() && !GradientReduction::has_buckets(gradients_, view, request_.wire);
      const std::int64_t part =
          whole ? largest_block(view) : largest_part(gradients_, view, wire(view));
      sums.data_copies = std::max(sums.data_copies, part);
      if (layout_.sharded()) {
        const std::int64_t shards = layout_.distribution(view).shard.extent;
        sums.data_shards = std::max(sums.data_shards, part * shards);
      }
    }
    const auto partial = [&](PartialGradients::Of of) {
      return PartialGradients::bytes_of(params_, gradients_, of, cut.sequence_parallel);
    };
    sums.tensor = std::max(sums.tensor, partial(PartialGradients::Of::kTensorAxis));
    sums.same_heads = partial(PartialGradients::Of::kSameHeads);
    sums.expert_tensor = partial(PartialGradients::Of::kExpertTensor);
    if (cut.context_method == ContextMethod::kAllGather) sums.context = 4 * kv_of_all();
    return sums;
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
  /// Columns of what the tensor axis gathers and sums by rows.
  [[nodiscard]] std::int64_t widest_rows() const {
    const auto& latent = model_.layer(0).attention.latent;
    return latent ? std::max({model_.hidden, latent->q_rank, latent->kv_rank}) : model_.hidden;
  }
  /// Keys and values of a layer, of all ranks of the context axis.
  [[nodiscard]] std::int64_t kv_of_all() const {
    const StageCut& cut = request_.part.cut;
    return config_of_rank(model_, cut.tensor).layer(0).attention.kv_size() * rows() *
           cut.context.extent;
  }
  [[nodiscard]] int copies_of_heads() const {
    return replicas_of_units(model_.layer(0).attention.kv_heads, request_.part.cut.tensor.extent);
  }

  /// Of gathers and sums over the ranks that see other tokens.
  [[nodiscard]] std::int64_t data_bytes(MeshView view, const LargestSums& sums) const {
    const int replicas = layout_.distribution(view).replica.extent;
    if (!layout_.sharded()) {
      if (!training()) return 0;
      const std::int64_t of_sums = staging_bytes(Op::kAllReduce, sums.data_copies, replicas);
      if (GradientReduction::has_buckets(gradients_, view, request_.wire)) return of_sums;
      const bool dense = view == MeshView::kDense;
      const std::int64_t looked_up =
          dense ? params_.front().looked_up_most * params_.front().shape[1] : std::int64_t{0};
      return std::max(of_sums, staging_bytes(Op::kAllGather, 4 * looked_up, replicas));
    }
    const int shards = layout_.distribution(view).shard.extent;
    const std::int64_t gather =
        staging_bytes(Op::kAllGather, largest_gathered(view) * shards, shards);
    if (!training()) return gather;
    return gather + staging_bytes(Op::kReduceScatter, sums.data_shards, shards) +
           staging_bytes(Op::kAllReduce, sums.data_copies, replicas);
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
  /// The same of weights in either form.
  [[nodiscard]] std::int64_t largest_gathered(MeshView view) const {
    std::int64_t bytes = 0;
    for (const WeightForm form : kWeightForms) {
      const StoreLayout layout(params_, layout_.distribution(), StoreLayout::of_form(form));
      const DType type = type_of(form, request_.compute);
      bytes = std::max(bytes, largest_part(layout, view, type));
    }
    return bytes;
  }
  /// Bytes of the largest block's gradients.
  [[nodiscard]] std::int64_t largest_block(MeshView view) const {
    std::int64_t size = 0;
    for (int i = 0; i < layout_.block_count(); ++i)
      size = std::max(size, gradients_.whole_gradients(i, view).size);
    return size * std::int64_t{sizeof(float)};
  }

  const ModelConfig& model_;
  const MemoryRequest& request_;
  const std::vector<ParamMeta>& params_;
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
  request.attention = &attention_backend(config, run.device);
  request.deterministic = config.run.deterministic;
  request.part = part_of_rank(config, run, rank, purpose);
  request.dispatch = config.moe.dispatch;
  request.speculative_step = config.parallel.speculative_step;
  request.log_blocks = config.log.blocks;
  request.nccl_max_ctas = config.parallel.nccl_max_ctas;
  request.optimizer = config.optimizer;
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
  if (memory.libraries > 0) items.emplace_back("libraries", memory.libraries);
  return items;
}

AttentionLayout attention_layout(const ModelConfig& model, const MemoryRequest& request) {
  return attention_layout(config_of_rank(model, request.part.cut.tensor).layer(0).attention,
                          request.passes.micro, request.sequence_length, request.deterministic);
}

std::int64_t scratch_bytes(const ModelConfig& model, const MemoryRequest& request) {
  const bool training = request.purpose != StagePurpose::kEvaluation;
  StageShape shape = request.part.stage(request.passes.micro, request.sequence_length,
                                        request.recompute, request.device);
  if (!training) shape.purpose = request.purpose;
  const std::int64_t ops = gpu_scratch_bytes(
      config_of_rank(model, request.part.cut.tensor, request.part.cut.expert.tensor), shape);
  if (request.attention->bytes == nullptr) return ops;
  return std::max(ops, request.attention->bytes(attention_layout(model, request), training));
}

LargestSums largest_sums(const ModelConfig& model, const MemoryRequest& request) {
  const std::vector<ParamMeta> params = request.part.declare(model).metas;
  const StoreLayout layout(params, request.part.store),
      gradients(params, request.part.store, StoreLayout::Of::kGradients);
  return TransferStaging(model, request, params, layout, gradients).sums();
}

RankMemory estimate_memory(const ModelConfig& model, const MemoryRequest& request) {
  const bool training = request.purpose != StagePurpose::kEvaluation;
  const ModelParams declared = request.part.declare(model);
  const std::vector<ParamMeta>& params = declared.metas;
  const ParamDistribution& distribution = request.part.store;
  const StoreLayout layout(params, distribution),
      gradients(params, distribution, StoreLayout::Of::kGradients);
  const StoreContents contents =
      training ? Optimizer::contents(request.optimizer) : StoreContents{};
  const auto store = ParamStore::bytes_of(params, request.compute, contents, distribution);
  StageShape shape = request.part.stage(request.passes.micro, request.sequence_length,
                                        request.recompute, request.device);
  if (!training) shape.purpose = request.purpose;
  RankMemory memory;
  memory.parameters = store.parameters;
  memory.gradients = store.gradients;
  memory.optimizer = store.optimizer;
  memory.activations = Stage::buffer_bytes(model, shape, request.compute);
  memory.buffers = loader_steps(training && request.speculative_step) *
                   loader_bytes_per_token(model, training) * shape.local_tokens() *
                   request.passes.accumulation;
  memory.buffers += RopeTables::bytes_of(model, request.sequence_length);
  if (request.sums == ReductionOrder::kRank) {
    const TransferStaging staging(model, request, params, layout, gradients);
    memory.buffers +=
        request.device == DeviceKind::kCpu ? staging.host_bytes() : staging.gpu_bytes();
  }
  if (request.device == DeviceKind::kCuda) {
    memory.buffers += scratch_bytes(model, request);
    memory.libraries = nccl_bytes(connected_axes(model, request), request.nccl_max_ctas);
  }
  if (layout.sharded())
    memory.buffers +=
        WeightGather::buffer_bytes(params, distribution, request.compute, request.device);
  if (request.part.fp8) memory.buffers += QuantizedRefresh::buffer_bytes(params, distribution);
  if (!training) return memory;
  if (request.sample_tokens > 0) {
    const ModelConfig local = config_of_rank(model, request.part.cut.tensor);
    for (const ChunkParams& chunk : declared.chunks)
      memory.buffers +=
          Decoder::cache_bytes(local, chunk.range, {request.sample_tokens}, request.compute);
  }
  memory.buffers +=
      GradientReduction::buffer_bytes(params, gradients, request.device, request.wire) +
      TiedWeight::buffer_bytes(params, gradients);
  for (const auto of : {PartialGradients::Of::kTensorAxis, PartialGradients::Of::kSameHeads,
                        PartialGradients::Of::kExpertTensor}) {
    memory.buffers +=
        PartialGradients::bytes_of(params, gradients, of, request.part.cut.sequence_parallel);
  }
  memory.buffers +=
      Optimizer::buffer_bytes(request.optimizer, params, distribution, request.compute);
  if (request.log_blocks)
    memory.buffers +=
        BlockMeter::buffer_bytes(params, gradients, Optimizer::piece(request.optimizer));
  if (request.speculative_step)
    memory.undo = Optimizer::undo_bytes(request.optimizer, params, distribution);
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

std::int64_t checkpoint_bytes(const RunConfig& config) {
  const std::vector<ParamMeta> params = declare_params(config.model).metas;
  std::int64_t bytes = 0;
  for (const OptimizerState& state : Optimizer::contents(config.optimizer).states) {
    for (const ParamMeta& param : params_of_state(params, state, {})) {
      if (param.trainable && param.shares == kNoParam)
        bytes += param.shape.count() * static_cast<std::int64_t>(size_of(state.dtype));
    }
  }
  const ParameterCount count = count_parameters(config.model);
  const auto value = static_cast<std::int64_t>(sizeof(float));
  return value * (config.model.adapters ? count.trained : count.total) + bytes;
}

}  // namespace trireme
