#include "plan/traffic.h"

#include <algorithm>

#include "comm/communicator.h"
#include "model/walk.h"
#include "store/buckets.h"
#include "store/partial_gradients.h"
#include "store/row_gradient.h"
#include "store/tied_weight.h"
#include "store/weight_gather.h"

namespace trireme {

namespace {

class Count {
 public:
  Count(const ModelConfig& model, const MemoryRequest& request, bool document_mask)
      : model_(model),
        request_(request),
        document_mask_(document_mask),
        params_(request.part.declare(model)),
        layout_(params_.metas, request.part.store),
        gradients_(params_.metas, request.part.store, StoreLayout::Of::kGradients),
        local_(config_of_rank(model, request.part.cut.tensor)),
        element_(static_cast<std::int64_t>(size_of(request.compute))),
        rows_(request.passes.micro * request.sequence_length / request.part.cut.context.extent) {}

  std::vector<Traffic> run() {
    for (const ChunkParams& chunk : params_.chunks) layers_ += chunk.range.layers;
    data();
    tensor();
    context();
    pipeline();
    std::erase_if(traffic_, [](const Traffic& traffic) { return traffic.bytes == 0; });
    return traffic_;
  }

 private:
  void add(Axis axis, const char* kind, std::int64_t bytes) {
    traffic_.push_back({axis, kind, bytes});
  }

  /// An all-reduce with the ranks of `group`.
  static std::int64_t both_ways(std::int64_t count, DType dtype, AxisRank group) {
    return all_reduce_bytes_sent(count, dtype, group.extent, group.index);
  }

  void data() {
    std::int64_t gradients = 0, weights = 0;
    const std::vector<std::int64_t> gathers =
        layout_.sharded() ? gathers_in_step(layout_, reads()) : std::vector<std::int64_t>();
    for (const MeshView view : kMeshViews) {
      if (!layout_.has(view)) continue;
      gradients += layout_.sharded() ? scattered_gradients(view) : summed_gradients(view);
      if (layout_.sharded()) weights += gathered_weights(view, gathers);
    }
    add(Axis::kData, "gradients", gradients);
    add(Axis::kData, "weights", weights);
  }

  [[nodiscard]] std::int64_t summed_gradients(MeshView view) const {
    const AxisRank replica = layout_.distribution(view).replica;
    std::int64_t bytes = 0;
    for (int block = 0; block < layout_.valued_blocks(); ++block)
      bytes += both_ways(gradients_.whole_gradients(block, view).size, DType::kF32, replica);
    const ParamMeta& first = params_.metas.front();
    if (view == MeshView::kDense && first.looked_up_most > 0)
      bytes += RowSum::bytes_sent(first.shape[1], first.looked_up_most, replica.extent);
    return bytes;
  }

  [[nodiscard]] std::int64_t scattered_gradients(MeshView view) const {
    const Distribution& ranks = layout_.distribution(view);
    const bool each_micro_batch = !layout_.distribution().accumulates_locally();
    const std::int64_t times = each_micro_batch ? request_.passes.accumulation : 1;
    std::int64_t bytes = 0;
    Buckets::for_each_part_of(
        gradients_, {view, DType::kF32, request_.device}, [&](int block, Slice part) {
          const ParamIndex first = layout_.block_params(block).first;
          const ParamMeta& param = params_.metas[static_cast<std::size_t>(first)];
          if (param.shares != kNoParam && !(each_micro_batch && param.reduced_alone)) return;
          bytes += one_way_bytes_sent(4 * part.size * ranks.shard.extent, ranks.shard.extent) +
                   both_ways(part.size, DType::kF32, ranks.replica);
        });
    return times * bytes;
  }

  [[nodiscard]] std::int64_t gathered_weights(MeshView view,
                                              const std::vector<std::int64_t>& gathers) const {
    const int shards = layout_.distribution(view).shard.extent;
    std::int64_t bytes = 0;
    Buckets::for_each_part_of(layout_, {view, request_.compute, request_.device},
                              [&](int block, Slice part) {
                                if (block >= layout_.valued_blocks()) return;
                                bytes += gathers[static_cast<std::size_t>(block)] *
                                         one_way_bytes_sent(element_ * part.size * shards, shards);
                              });
    return bytes;
  }

  void tensor() {
    const StageCut& cut = request_.part.cut;
    const AxisRank rank = cut.tensor;
    if (rank.extent == 1) return;
    const std::int64_t wide = rows_ * model_.hidden;
    const std::int64_t half = one_way_bytes_sent(wide * element_, rank.extent);
    const std::int64_t gather = cut.sequence_parallel ? half : 0;
    const std::int64_t reduce =
        cut.sequence_parallel ? half : both_ways(wide, request_.compute, rank);
    const auto sent = [&](const LayerTransitions& of) {
      return of.all_gathers * gather + of.reduces * reduce;
    };
    std::int64_t layer = sent(kForwardTransitions) + sent(kBackwardTransitions);
    if (request_.recompute == Recompute::kFull) layer += sent(kRecomputeTransitions);
    // The embedding and its gradient; the head's input and its gradient.
    std::int64_t ends = 0, heads = 0;
    for (const ChunkParams& chunk : params_.chunks) {
      ends += (chunk.range.embedding + chunk.range.head) * (gather + reduce);
      heads += chunk.range.head;
    }
    const std::int64_t steps = request_.passes.accumulation;
    add(Axis::kTensor, "activations", steps * (layers_ * layer + ends));
    // Maximum, sum and target logit of each token.
    add(Axis::kTensor, "statistics",
        steps * heads * one_way_bytes_sent(3 * 4 * rows_ * rank.extent, rank.extent));
    using Of = PartialGradients::Of;
    const auto partial = [&](Of of, AxisRank group) {
      const std::int64_t bytes =
          PartialGradients::bytes_of(params_.metas, gradients_, of, cut.sequence_parallel);
      return both_ways(bytes / 4, DType::kF32, group);
    };
    const int copies = replicas_of_units(model_.layer(0).attention.kv_heads, rank.extent);
    add(Axis::kTensor, "gradients",
        partial(Of::kTensorAxis, rank) + partial(Of::kSameHeads, {copies, rank.index % copies}));
  }

  void context() {
    const StageCut& cut = request_.part.cut;
    const std::int64_t ranks = cut.context.extent;
    if (ranks == 1) return;
    const AttentionConfig& local = local_.layer(0).attention;
    const std::int64_t kv = 2 * local.kv_size() * rows_;
    std::int64_t forward = 0, backward = 0;
    if (cut.context_method == ContextMethod::kUlysses) {
      const std::int64_t heads = local.heads / ranks;
      const std::int64_t kv_heads = std::max<std::int64_t>(1, local.kv_heads / ranks);
      const std::int64_t q = rows_ * heads * local.head_dim;
      const std::int64_t qkv = q + 2 * rows_ * kv_heads * local.head_dim;
      const std::int64_t keys = document_mask_ ? rows_ * 4 : 0;
      forward = (ranks - 1) * ((qkv + q) * element_ + keys);
      backward = (ranks - 1) * ((qkv + q) * element_ + rows_ * heads * 4 + qkv * 4 + keys);
    } else {
      const bool ring = cut.context_method == ContextMethod::kRing;
      forward = (ranks - 1) * kv * element_;
      // A ring's sums make one hop more, to their owner.
      backward = forward + (ring ? ranks : ranks - 1) * kv * 4;
    }
    if (request_.recompute == Recompute::kFull) backward += forward;
    add(Axis::kContext, "keys_values",
        request_.passes.accumulation * layers_ * (forward + backward));
  }

  void pipeline() {
    const std::int64_t stream = TensorAxis::residual_tokens(rows_, request_.part.cut.tensor.extent,
                                                            request_.part.cut.sequence_parallel) *
                                model_.hidden * element_;
    add(Axis::kPipeline, "activations",
        request_.passes.accumulation * request_.part.neighbours * stream);
    add(Axis::kPipeline, "gradients", TiedWeight::buffer_bytes(params_.metas, gradients_));
  }

  /// The blocks of weights that a step reads, in order.
  [[nodiscard]] std::vector<int> reads() const {
    std::vector<int> blocks;
    const int micro_batches = narrow<int>(request_.passes.accumulation);
    const std::vector<Action> actions = request_.part.chunks.empty()
                                            ? make_1f1b(1, micro_batches).ranks.front()
                                            : request_.part.actions;
    for (const Action& action : actions) {
      const ChunkParams& chunk = params_.chunks[static_cast<std::size_t>(action.virtual_stage)];
      const std::vector<int> read = blocks_read(params_, chunk, action.kind);
      blocks.insert(blocks.end(), read.begin(), read.end());
    }
    return blocks;
  }

  const ModelConfig& model_;
  const MemoryRequest& request_;
  const bool document_mask_;
  const ModelParams params_;
  const StoreLayout layout_, gradients_;
  const ModelConfig local_;
  const std::int64_t element_, rows_;
  std::int64_t layers_ = 0;
  std::vector<Traffic> traffic_;
};

}  // namespace

std::vector<Traffic> step_traffic(const ModelConfig& model, const MemoryRequest& request,
                                  bool document_mask) {
  return Count(model, request, document_mask).run();
}

}  // namespace trireme
