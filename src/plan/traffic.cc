#include "plan/traffic.h"

#include <algorithm>

#include "base/math.h"
#include "comm/communicator.h"
#include "model/fp8_linear.h"
#include "model/head.h"
#include "model/walk.h"
#include "optim/matrix_share.h"
#include "optim/optimizer.h"
#include "store/buckets.h"
#include "store/partial_gradients.h"
#include "store/quantized_refresh.h"
#include "store/reduction.h"
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
        local_(config_of_rank(model, request.part.cut.tensor, request.part.cut.expert.tensor)),
        element_(static_cast<std::int64_t>(size_of(request.compute))),
        rows_(request.passes.micro * request.sequence_length / request.part.cut.context.extent) {}

  std::vector<Traffic> run() {
    data();
    parts();
    tensor();
    context();
    pipeline();
    experts();
    std::erase_if(traffic_, [](const Traffic& traffic) { return traffic.bytes == 0; });
    return traffic_;
  }

 private:
  struct Moved {
    std::int64_t bytes = 0, transfers = 0, copies = 0;
    Moved& operator+=(const Moved& more) {
      bytes += more.bytes;
      transfers += more.transfers;
      copies += more.copies;
      return *this;
    }
    friend Moved operator*(std::int64_t times, const Moved& moved) {
      return {times * moved.bytes, times * moved.transfers, times * moved.copies};
    }
  };
  void add(Axis axis, const char* kind, const Moved& moved) {
    traffic_.push_back({axis, kind, moved.bytes, moved.transfers, moved.copies});
  }

  /// An all-reduce with the ranks of `group`: in rank order on GPUs, to owners and back.
  [[nodiscard]] Moved both_ways(std::int64_t count, DType dtype, AxisRank group) const {
    if (group.extent == 1 || count == 0) return {};
    const bool there_and_back =
        request_.device == DeviceKind::kCuda && request_.sums == ReductionOrder::kRank;
    return {all_reduce_bytes_sent(count, dtype, group.extent, group.index), there_and_back ? 2 : 1};
  }
  /// A reduce-scatter or an all-gather.
  static Moved one_way(std::int64_t bytes, std::int64_t ranks) {
    if (ranks == 1 || bytes == 0) return {};
    return {one_way_bytes_sent(bytes, narrow<int>(ranks)), 1};
  }

  void data() {
    Moved gradients, weights;
    const std::vector<std::int64_t> gathers =
        layout_.sharded() ? gathers_in_step(layout_, reads()) : std::vector<std::int64_t>();
    for (const MeshView view : kMeshViews) {
      if (!layout_.has(view)) continue;
      gradients += GradientReduction::has_buckets(gradients_, view, request_.wire)
                       ? gradients_in_buckets(view)
                       : whole_gradients(view);
      if (layout_.sharded()) weights += gathered_weights(view, gathers);
    }
    for (const MeshView view : kMeshViews)
      if (const std::int64_t maxima = fp8_maxima(view).shards; maxima > 0)
        weights += {maxima, 2, 0};
    add(Axis::kData, "gradients", gradients);
    add(Axis::kData, "weights", weights);
    Moved moments;
    for (const MeshView view : kMeshViews) moments += joined(moment_maxima(view).shards);
    add(Axis::kData, "moments", moments);
  }

  /// The magnitudes of blocks of moments that cuts cross.
  [[nodiscard]] Optimizer::Sent moment_maxima(MeshView view) const {
    if (!layout_.has(view)) return {};
    return Optimizer::bytes_sent(request_.optimizer, params_.metas, request_.part.store, view);
  }
  /// To the rank that joins a part, and from there to all.
  static Moved joined(std::int64_t bytes) { return {bytes, bytes > 0 ? 2 : 0, 0}; }
  /// Of matrices that are updated as wholes.
  void parts() {
    if (request_.optimizer.kind != OptimizerKind::kMuon) return;
    for (const MeshView view : kMeshViews) {
      const MatrixShare::Cost cost = MatrixShare(params_.metas, request_.part.store, view).cost();
      const Axis cut = view == MeshView::kDense ? Axis::kTensor : Axis::kExpert;
      const bool sharded = layout_.distribution(view).shard.extent > 1;
      add(sharded ? Axis::kData : cut, "updates",
          {cost.elements_sent * element_, cost.transfers, 0});
    }
  }

  [[nodiscard]] DType wire(MeshView view) const {
    return GradientReduction::wire_of(gradients_, view, request_.wire);
  }

  [[nodiscard]] Moved whole_gradients(MeshView view) const {
    const AxisRank replica = layout_.distribution(view).replica;
    Moved moved;
    for (int block = 0; block < layout_.valued_blocks(); ++block)
      moved += both_ways(gradients_.whole_gradients(block, view).size, DType::kF32, replica);
    const ParamMeta& first = params_.metas.front();
    if (view == MeshView::kDense && first.looked_up_most > 0 && replica.extent > 1)
      moved += {RowSum::bytes_sent(first.shape[1], first.looked_up_most, replica.extent), 2};
    return moved;
  }

  [[nodiscard]] Moved gradients_in_buckets(MeshView view) const {
    const Distribution& ranks = layout_.distribution(view);
    const bool each_micro_batch = !layout_.distribution().accumulates_locally();
    const std::int64_t times = each_micro_batch ? request_.passes.accumulation : 1;
    Moved moved;
    Buckets::for_each_part_of(
        gradients_, {view, wire(view), request_.device}, [&](int block, Slice part) {
          const ParamIndex first = layout_.block_params(block).first;
          const ParamMeta& param = params_.metas[static_cast<std::size_t>(first)];
          if (param.shares != kNoParam && !(each_micro_batch && param.reduced_alone)) return;
          const auto element = static_cast<std::int64_t>(size_of(wire(view)));
          moved += one_way(element * part.size * ranks.shard.extent, ranks.shard.extent);
          moved += both_ways(part.size, wire(view), ranks.replica);
          moved.copies += 2;  // into the bucket, and what is owned out of it
        });
    return times * moved;
  }

  [[nodiscard]] Moved gathered_weights(MeshView view,
                                       const std::vector<std::int64_t>& gathers) const {
    const int shards = layout_.distribution(view).shard.extent;
    Moved moved;
    for (const WeightForm form : kWeightForms) {
      const StoreLayout layout(params_.metas, request_.part.store, StoreLayout::of_form(form));
      const DType type = type_of(form, request_.compute);
      Buckets::for_each_part_of(layout, {view, type, request_.device}, [&](int block, Slice part) {
        if (block >= layout_.valued_blocks()) return;
        const auto element = static_cast<std::int64_t>(size_of(type));
        Moved gather = one_way(element * part.size * shards, shards);
        gather.copies = 2;  // what is owned into the bucket, everybody's out of it
        moved += gathers[static_cast<std::size_t>(block)] * gather;
      });
    }
    return moved;
  }

  /// The largest magnitudes of fp8 weights, once a step.
  [[nodiscard]] QuantizedRefresh::Sent fp8_maxima(MeshView view) const {
    if (!request_.part.fp8 || !layout_.has(view)) return {};
    return QuantizedRefresh::bytes_sent(params_.metas, request_.part.store, view);
  }

  void tensor() {
    const StageCut& cut = request_.part.cut;
    const AxisRank rank = cut.tensor;
    if (rank.extent == 1) return;
    const Moved gather = gathered_rows(model_.hidden), reduce = reduced_rows(model_.hidden);
    // Of what products make, on a GPU: rows of other ranks are on their way while the next are
    // made.
    Moved made = reduce;
    if (cut.sequence_parallel && request_.device == DeviceKind::kCuda)
      made.transfers = rank.extent - 1;
    const auto moved = [&](const LayerTransitions& of, const Moved& one_reduce) {
      Moved sum = of.all_gathers * gather;
      return sum += of.reduces * one_reduce;
    };
    Moved stream;
    for_each_layer([&](const LayerConfig& layer, bool goes_back) {
      const Moved& of_y = layer.experts ? reduce : made;
      stream += moved(forward_transitions(layer, cut.sequence_parallel), of_y);
      if (layer.attention.latent) stream += instead_of_n(*layer.attention.latent, goes_back);
      if (!goes_back) return;
      stream += moved(backward_transitions(layer, cut.sequence_parallel), reduce);
      if (request_.recompute == Recompute::kFull)
        stream += moved(recompute_transitions(layer), of_y);
    });
    // The embedding and its gradient; the head's input and its gradient.
    Moved maxima;
    if (request_.part.fp8) fp8_layers(gather, made, reduce, stream, maxima);
    std::int64_t heads = 0;
    for (const ChunkParams& chunk : params_.chunks) {
      const bool looks_back = chunk.range.embedding && !model_.adapters,
                 head_back =
                     chunk.range.head && params_.first_trained(chunk.range) < chunk.range.layers;
      stream += (looks_back + chunk.range.head) * gather;
      stream += (chunk.range.embedding + head_back) * reduce;
      heads += chunk.range.head;
    }
    const std::int64_t steps = request_.passes.accumulation;
    add(Axis::kTensor, "activations", steps * stream);
    // Maximum, sum and target logit of each token.
    Moved statistics = one_way(3 * 4 * rows_ * rank.extent, rank.extent);
    statistics.transfers = ceil_div(
        rows_,
        head_chunk_tokens({model_.vocab_size, rows_, request_.compute, rank, request_.device}));
    statistics = heads * statistics;
    statistics += squares(rank);
    statistics += maxima;
    add(Axis::kTensor, "statistics", steps * statistics);
    if (const std::int64_t joined = fp8_maxima(MeshView::kDense).tensor; joined > 0)
      add(Axis::kTensor, "weights", {joined, 1, 0});
    add(Axis::kTensor, "moments", joined(moment_maxima(MeshView::kDense).tensor));
    using Of = PartialGradients::Of;
    const auto partial = [&](Of of, AxisRank group) {
      const std::int64_t bytes =
          PartialGradients::bytes_of(params_.metas, gradients_, of, cut.sequence_parallel);
      return both_ways(bytes / 4, DType::kF32, group);
    };
    const int copies = replicas_of_units(model_.layer(0).attention.kv_heads, rank.extent);
    Moved gradients = partial(Of::kTensorAxis, rank);
    add(Axis::kTensor, "gradients",
        gradients += partial(Of::kSameHeads, {copies, rank.index % copies}));
  }

  /// Squares of q and k, and their gradient's part along them; with magnitudes those of rows whose
  /// columns are cut.
  [[nodiscard]] Moved squares(AxisRank rank) const {
    const std::int64_t back = request_.recompute == Recompute::kFull ? 2 : 1;
    const bool magnitudes = model_.adapters && model_.adapters->magnitudes;
    Moved sum;
    for_each_layer([&](const LayerConfig& layer, bool goes_back) {
      if (layer.attention.qk_norm == QkNorm::kProjection)
        sum += (goes_back ? 1 + back : 1) * both_ways(2 * rows_, DType::kF32, rank);
      for (const std::int64_t ranks : {layer.adapters.attention_out, layer.adapters.mlp_out})
        if (magnitudes && ranks > 0) sum += both_ways(model_.hidden, DType::kF32, rank);
    });
    return sum;
  }

  /// Residual rows of so many columns become all rows of the tensor axis, and the other way.
  [[nodiscard]] Moved gathered_rows(std::int64_t columns) const {
    const StageCut& cut = request_.part.cut;
    return cut.sequence_parallel ? one_way(rows_ * columns * element_, cut.tensor.extent) : Moved{};
  }
  [[nodiscard]] Moved reduced_rows(std::int64_t columns) const {
    const StageCut& cut = request_.part.cut;
    return cut.sequence_parallel ? gathered_rows(columns)
                                 : both_ways(rows_ * columns, request_.compute, cut.tensor);
  }

  /// What latents add to a layer in which n of attention travels. W has them; it would gather n.
  [[nodiscard]] Moved instead_of_n(const LatentConfig& latent, bool goes_back) const {
    const std::int64_t backward = goes_back ? 1 : 0,
                       forward = 1 + (request_.recompute == Recompute::kFull ? backward : 0);
    Moved sum;
    for (const std::int64_t columns : {latent.q_rank, latent.kv_rank, latent.rope_dim}) {
      sum += forward * gathered_rows(columns);
      sum += backward * reduced_rows(columns);
    }
    if (latent.q_rank == 0) return sum;
    sum += -(forward + backward) * gathered_rows(model_.hidden);
    return sum += -backward * reduced_rows(model_.hidden);
  }

  /// Of layers whose products are in fp8: norms' outputs travel as codes, products reduce all rows
  /// at once, and maxima of what ranks have parts of are joined.
  void fp8_layers(const Moved& gather, const Moved& made, const Moved& reduce, Moved& stream,
                  Moved& maxima) const {
    const Fp8Recipe recipe = request_.part.fp8->recipe;
    const int extent = request_.part.cut.tensor.extent;
    const bool again = request_.recompute == Recompute::kFull, after = model_.layer(0).norm_after();
    const auto joins = [&](std::int64_t values) {
      return values == 0 ? Moved{} : one_way(4 * values * extent, extent);
    };
    const auto input = [&](const LinearParams& linear, std::int64_t times) {
      if (gather.bytes == 0) return;
      const Fp8Gathered of = fp8_gathered(recipe, linear.fp8->in, rows_);
      Moved codes = one_way(of.codes, extent);
      if (of.scales > 0) codes += one_way(of.scales, extent);
      stream += times * codes;
      stream += -times * gather;
      if (of.maxima > 0) maxima += times * one_way(of.maxima * extent, extent);
    };
    const auto column_parallel = [&](const LinearParams& of) {
      maxima += joins(fp8_joined_rows(recipe, of.fp8->out, of.fp8->out_cut, rows_, extent));
      maxima += joins(fp8_joined_columns(recipe, of.fp8->out, of.fp8->out_cut, extent));
    };
    for (const ChunkParams& chunk : params_.chunks) {
      for (std::size_t layer = 0; layer < chunk.blocks.size(); ++layer) {
        const BlockParams& block = chunk.blocks[layer];
        const bool goes_back =
            static_cast<std::int64_t>(layer) >= params_.first_trained(chunk.range);
        if (!block.attention.in.fp8) continue;
        const std::int64_t forward = again && goes_back ? 2 : 1;
        const std::pair<const BranchParams*, std::int64_t> branches[] = {
            {&block.attention, forward}, {&block.mlp, again && goes_back && after ? 2 : 1}};
        const bool with_experts = block.experts.in.weight.given();
        for (const auto& [branch, last] : branches) {
          const LinearParams &in = branch->in, &out = branch->out;
          if (!in.weight.given()) continue;  // experts alone
          const bool of_attention = branch == &block.attention;
          const bool whole = of_attention ? block.attention.kv_up.weight.given()
                                          : block.experts.shared_gate.weight.given();
          if (!whole) input(in, forward);
          if (!with_experts || of_attention) {
            stream += last * reduce;
            stream += -last * made;
          }
          maxima +=
              last * joins(fp8_joined_rows(recipe, out.fp8->in, out.fp8->in_cut, rows_, extent));
          if (!goes_back) continue;
          column_parallel(in);
          maxima += joins(fp8_joined_columns(recipe, out.fp8->in, out.fp8->in_cut, extent));
        }
        for (const LinearParams* up : {&block.attention.q_up, &block.attention.kv_up})
          if (up->fp8 && goes_back) column_parallel(*up);
      }
    }
  }

  void context() {
    const StageCut& cut = request_.part.cut;
    const std::int64_t ranks = cut.context.extent;
    if (ranks == 1) return;
    const AttentionConfig& local = local_.layer(0).attention;
    const std::int64_t kv = local.kv_size() * rows_;
    Moved forward, backward;
    if (cut.context_method == ContextMethod::kUlysses) {
      const std::int64_t heads = local.heads / ranks;
      const std::int64_t kv_heads = std::max<std::int64_t>(1, local.kv_heads / ranks);
      const std::int64_t o = rows_ * heads * local.value_dim();
      const std::int64_t qkv =
          rows_ * (heads * local.head_dim + kv_heads * (local.head_dim + local.value_dim()));
      const std::int64_t keys = document_mask_ ? rows_ * 4 : 0, masks = document_mask_ ? 1 : 0;
      forward = {(ranks - 1) * ((qkv + o) * element_ + keys), 2 + masks};
      backward = {(ranks - 1) * ((qkv + o) * element_ + rows_ * heads * 4 + qkv * 4 + keys),
                  4 + masks};
    } else {
      const bool ring = cut.context_method == ContextMethod::kRing;
      forward = {(ranks - 1) * kv * element_, ring ? ranks - 1 : 1};
      // A ring's sums make one hop more, to their owner.
      backward = forward;
      backward += {(ring ? ranks : ranks - 1) * kv * 4, ring ? ranks : 1};
    }
    if (request_.recompute == Recompute::kFull) backward += forward;
    Moved all;
    for_each_layer([&](const LayerConfig&, bool goes_back) {
      all += forward;
      if (goes_back) all += backward;
    });
    add(Axis::kContext, "keys_values", request_.passes.accumulation * all);
  }

  void pipeline() {
    const std::int64_t stream = TensorAxis::residual_tokens(rows_, request_.part.cut.tensor.extent,
                                                            request_.part.cut.sequence_parallel) *
                                model_.hidden * element_;
    const RankPart& part = request_.part;
    add(Axis::kPipeline, "activations",
        request_.passes.accumulation * Moved{part.sends * stream, part.sends + part.receives});
    const std::int64_t tied = TiedWeight::buffer_bytes(params_.metas, gradients_);
    add(Axis::kPipeline, "gradients", {tied, tied > 0 ? 1 : 0});
  }

  /// `f(layer, goes_back)`: whether it is the first that is trained or behind that.
  template <class F>
  void for_each_layer(const F& f) const {
    for (const ChunkParams& chunk : params_.chunks) {
      for (std::int64_t i = 0; i < chunk.range.layers; ++i)
        f(model_.layer(chunk.range.first_layer + i), i >= params_.first_trained(chunk.range));
    }
  }

  /// Tokens to the ranks of their experts and rows back. The gradients of what comes back go out,
  /// those of tokens come back. At worst each token of this rank has an expert on as many others as
  /// there can be, and each token of the others has all its experts here.
  void experts() {
    const StageCut& cut = request_.part.cut;
    const std::int64_t ranks = cut.expert.ranks();
    if (ranks == 1) return;
    const auto others = static_cast<double>(ranks - 1);
    const std::int64_t home = ceil_div(rows_, cut.tensor.extent);
    const bool all = request_.dispatch == DispatchMethod::kAllGather;
    const double again = request_.recompute == Recompute::kFull ? 1 : 0;
    double bytes = 0, worst = 0, transfers = 0;
    for_each_layer([&](const LayerConfig& layer, bool goes_back) {
      if (!layer.experts) return;
      const double forwards = goes_back ? 1 + again : 1, backwards = goes_back ? 1 : 0;
      const auto experts = static_cast<double>(layer.experts->count);
      const auto chosen = static_cast<double>(layer.experts->chosen);
      const double row = static_cast<double>(model_.hidden * element_);
      const double here = experts / cut.expert.expert.extent;
      double misses = 1;  // of a token whose experts are all elsewhere
      for (double i = 0; i < chosen; ++i)
        misses *= std::max(0.0, experts - here - i) / (experts - i);
      const double tokens = static_cast<double>(home) * (all ? 1 : 1 - misses) * others;
      const double rows = static_cast<double>(home) * chosen * others * cut.expert.tensor.extent /
                          static_cast<double>(ranks);
      const auto sent = [&](double tokens_out, double rows_out) {
        return (forwards + backwards) * tokens_out * row + forwards * tokens_out * 8 * chosen +
               (1 + backwards) * rows_out * row + backwards * rows_out * 4;
      };
      bytes += sent(tokens, rows);
      const double homes = cut.expert.expert.extent;
      const double reached = all ? others
                                 : std::min(chosen, homes - 1) * cut.expert.tensor.extent +
                                       (chosen >= homes ? cut.expert.tensor.extent - 1 : 0);
      worst += sent(static_cast<double>(home) * reached,
                    static_cast<double>(home) * others * std::min(chosen, here));
      transfers += 3 * (forwards + backwards);
    });
    const std::int64_t steps = request_.passes.accumulation;
    add(Axis::kExpert, "tokens",
        {steps * static_cast<std::int64_t>(bytes), steps * static_cast<std::int64_t>(transfers)});
    traffic_.back().worst_bytes = steps * static_cast<std::int64_t>(worst);
    const std::int64_t adapters = PartialGradients::bytes_of(
        params_.metas, gradients_, PartialGradients::Of::kExpertTensor, cut.sequence_parallel);
    add(Axis::kExpert, "gradients", both_ways(adapters / 4, DType::kF32, cut.expert.tensor));
    add(Axis::kExpert, "moments", joined(moment_maxima(MeshView::kExpert).tensor));
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
  std::vector<Traffic> traffic_;
};

}  // namespace

std::vector<Traffic> step_traffic(const ModelConfig& model, const MemoryRequest& request,
                                  bool document_mask) {
  return Count(model, request, document_mask).run();
}

}  // namespace trireme
