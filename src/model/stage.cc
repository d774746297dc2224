#include "model/stage.h"

#include <algorithm>
#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "kernels/magnitude/magnitude.h"
#include "model/walk.h"
#include "tensor/transfer.h"

namespace trireme {

namespace {

/// What an entry names; -1: nothing.
std::int32_t entry_of(const std::vector<std::int32_t>& entries, std::int64_t index) {
  return entries.empty() ? -1 : entries[static_cast<std::size_t>(index) % entries.size()];
}

}  // namespace

Stage::Stage(Context& context, const ModelConfig& config, const ModelParams& params,
             ParamStore& store, const StageShape& shape, StageAxes axes)
    : context_(context),
      config_(config),
      local_(config_of_rank(config, shape.cut.tensor, shape.cut.expert.tensor)),
      params_(params),
      store_(store),
      shape_(shape),
      axes_(std::move(axes)),
      vocabulary_(vocabulary_part(config.vocab_size, shape.cut.tensor)),
      memory_(context.device(),
              static_cast<std::size_t>(buffer_bytes(config, shape, store.compute()))),
      largest_(largest_layer(local_)),
      layer_shape_(layer_shape(local_, largest_, shape, store.compute())),
      ropes_(context, config, shape.tokens),
      chunks_(chunks_of(config, shape)),
      loss_sum_(DType::kF64, {1}, context.device()),
      square_sum_(DType::kF64, {1}, context.device()),
      loss_scale_(DType::kF32, {1}, context.device()),
      device_batches_(shape.steps.empty() ? 1 : shape.steps.front()) {
  expect(context.device().kind == shape.device, "a stage laid out for another device");
  expect(axes_.tensor.rank() == shape.cut.tensor && axes_.context.rank() == shape.cut.context &&
             axes_.expert.cut() == shape.cut.expert,
         "a stage of another cut than its axes");
  expect(params.chunks.size() == chunks_.size(), "{} chunks with parameters of {}", chunks_.size(),
         params.chunks.size());
  ArenaCursor arena(memory_.data());
  buffers_ = lay_out(arena, config, shape, store.compute());
  if (shape_.fp8) fp8_.emplace(Fp8Products{context_, axes_.tensor, *shape_.fp8, buffers_.fp8});
  if (largest_.experts) prepare_experts();
  for (const ChunkParams& chunk : params.chunks) {
    for (const ActionKind kind :
         {ActionKind::kForward, ActionKind::kRecompute, ActionKind::kBackward})
      reads_[{&chunk, kind}] = blocks_read(params, chunk, kind);
  }
}

void Stage::take_step_of(std::int64_t micro_batches) {
  first_entry_ = 0;
  for (const std::int64_t count : shape_.steps) {
    if (count == micro_batches) return;
    first_entry_ += count;
  }
  expect(shape_.steps.empty(), "a step of {} micro-batches, which no schedule has", micro_batches);
}

void Stage::begin_step(std::span<const MicroBatch> micro_batches, std::int64_t target_count) {
  take_step_of(std::ssize(micro_batches));
  micro_batches_ = device_batches_.bring(context_, micro_batches);
  const auto scale =
      static_cast<float>(1.0 / static_cast<double>(std::max<std::int64_t>(1, target_count)));
  copy_bytes(context_, loss_scale_.view().data, reinterpret_cast<const std::byte*>(&scale),
             sizeof scale);
  evaluating_ = false;
  begin_experts(experts_balance());
}

ExpertsBalance Stage::experts_balance() const {
  ExpertsBalance balance;
  if (!experts_) return balance;
  const ExpertsConfig& experts = *largest_.experts;
  const auto step =
      static_cast<double>(balance_.pass_tokens * static_cast<std::int64_t>(micro_batches_.size()));
  const double scope = balance_.whole_batch ? step : static_cast<double>(balance_.sequence_tokens);
  balance.aux_factor =
      static_cast<float>(balance_.aux_coefficient * static_cast<double>(experts.count) /
                         (static_cast<double>(experts.chosen) * scope * step));
  balance.z_factor = static_cast<float>(balance_.z_loss / step);
  balance.whole_batch = balance_.whole_batch;
  return balance;
}

void Stage::begin_magnitudes() {
  if (!layer_shape_.magnitudes) return;
  for (int chunk = 0; chunk < static_cast<int>(params_.chunks.size()); ++chunk) {
    const ChunkParams& params = params_of(chunk);
    WeightReader weights = reader_of(chunk, ActionKind::kRecompute);
    for (std::int64_t layer = first_trained(chunk); layer < params.range.layers; ++layer) {
      const BlockParams& of = params.blocks[static_cast<std::size_t>(layer)];
      const ParamStore::Lease lease = weights.next();
      const BlockWeights here = with_kept(weights_of(lease, of),
                                          fitted(shape_of(chunk, layer), acts_of(chunk, 0, layer)));
      find_gains({context_, axes_.tensor, buffers_.adapters, buffers_.widened}, here);
      take_lengths(of, here);
    }
    if (!params.head_adapter.a.given()) continue;
    const ParamStore::Lease lease = store_.acquire(params_.block_of(params.head), -1);
    AdapterWeights head = head_adapter(lease, params);
    head.rows_of = buffers_.head.adapter.rows;
    head_gains(context_, buffers_.head.adapter.scratch, lease.padded_weight(params.head), head);
    take_lengths(params.head_adapter, head);
  }
}

AdapterWeights Stage::head_adapter(const ParamStore::Lease& lease, const ChunkParams& chunk) {
  return weights_of(lease, chunk.head_adapter, {chunk.head, chunk.head}, RowPadding::kTaken);
}

void Stage::take_lengths(const AdapterParams& params, const AdapterWeights& from) {
  for (std::size_t i = 0; i < params.parts.size(); ++i) {
    const ParamIndex magnitude = params.parts[i].magnitude;
    const TensorView owned = store_.value(magnitude);
    if (owned.count() == 0) continue;
    const Slice rows = store_.layout().owned(magnitude);
    const auto here = [&](const TensorView& all) {
      return all.rows(from.parts[i].first + rows.begin, rows.size);
    };
    clear(context_, owned);
    magnitude_gradient(context_, owned, here(from.rows_of.squares()), here(from.rows_of.inverse()));
  }
}

void Stage::take_lengths(const BlockParams& params, const BlockWeights& weights) {
  const auto take = [&](const LinearParams& linear, const LinearWeights& from) {
    take_lengths(linear.adapter, from.adapter);
  };
  take(params.attention.in, weights.attention.in);
  take(params.attention.q_up, weights.attention.q_up);
  take(params.attention.kv_up, weights.attention.kv_up);
  take(params.attention.out, weights.attention.out);
  take(params.mlp.in, weights.mlp.in);
  take(params.mlp.out, weights.mlp.out);
}

void Stage::rewind() {
  clear(context_, loss_sum_.view());
  if (z_loss_ != 0) clear(context_, square_sum_.view());
  if (experts_ && !evaluating_) {
    clear(context_, expert_losses_.view());
    clear(context_, expert_load_.view());
  }
  store_.gradients().begin_step(context_);
}

ModelPass Stage::pass_of(const MicroBatch& micro_batch, Direction direction) {
  const std::int64_t tokens = shape_.tokens / shape_.cut.context.extent;
  expect(micro_batch.sequences == shape_.sequences && micro_batch.tokens == tokens,
         "a micro-batch of {} x {} tokens in a stage made for {} x {}", micro_batch.sequences,
         micro_batch.tokens, shape_.sequences, tokens);
  AttentionMask mask;
  mask.sequences = micro_batch.sequences;
  mask.q = mask.kv = axes_.context.own(tokens);
  mask.first_key_T = micro_batch.first_key;
  AdapterScratch adapters = buffers_.adapters;
  if (config_.adapters && config_.adapters->dropout > 0) {
    adapters.dropout = {config_.adapters->dropout, micro_batch.numbers, shape_.cut.tensor.index};
  }
  PassDropout dropout;
  if (!evaluating_ && config_.has_dropout())
    dropout = {config_.dropout_key, micro_batch.numbers, shape_.cut.tensor.index};
  const auto& experts = direction == Direction::kForward ? experts_ : experts_backward_;
  return {context_,
          local_,
          axes_.tensor,
          axes_.context,
          ropes_,
          micro_batch.positions,
          mask,
          fp8_ ? &*fp8_ : nullptr,
          buffers_.widened,
          experts ? &*experts : nullptr,
          adapters,
          dropout};
}

void Stage::prepare_experts() {
  if (axes_.places.empty()) axes_.places = expert_places(config_, shape_.cut.expert.expert.extent);
  for (BlockActivations& acts : buffers_.activations)
    acts.experts.route = std::make_shared<ExpertRoute>();
  const std::int64_t layers = config_.layer_count();
  const Shape counts{layers, shape_.sequences, largest_.experts->count};
  experts_.emplace(ExpertsPass{axes_.expert, axes_.places, buffers_.experts});
  experts_->sequence_tokens = shape_.tokens / shape_.cut.context.extent;
  experts_backward_.emplace(ExpertsPass{axes_.expert, axes_.places, buffers_.experts_backward});
  experts_backward_->sequence_tokens = experts_->sequence_tokens;
  if (shape_.purpose == StagePurpose::kEvaluation) return;
  expert_losses_ = Buffer(DType::kF64, {layers, 2}, context_.device());
  expert_load_ = Buffer(DType::kI32, counts, context_.device());
}

void Stage::begin_experts(const ExpertsBalance& balance) {
  if (!experts_) return;
  for (auto* pass : {&experts_, &experts_backward_}) {
    (*pass)->balance = balance;
    (*pass)->losses_L2 = evaluating_ ? TensorView() : expert_losses_.view();
    (*pass)->load_LBE = evaluating_ ? TensorView() : expert_load_.view();
  }
}

Stage::ExpertTotals Stage::expert_totals() {
  ExpertTotals totals;
  if (!experts_) return totals;
  const auto layers = static_cast<std::size_t>(config_.layer_count());
  totals.losses.resize(layers);
  copy_out(context_, std::as_writable_bytes(std::span(totals.losses)), expert_losses_.view());
  std::vector<std::int32_t> load(static_cast<std::size_t>(expert_load_.view().count()));
  copy_out(context_, std::as_writable_bytes(std::span(load)), expert_load_.view());
  const auto experts = static_cast<std::size_t>(largest_.experts->count);
  totals.load.assign(layers, std::vector<std::int64_t>(experts));
  const std::size_t of_layer = load.size() / layers;
  for (std::size_t i = 0; i < load.size(); ++i) totals.load[i / of_layer][i % experts] += load[i];
  return totals;
}

/// The entry of layer `layer` in a list of a chunk; -1: none.
std::int32_t Stage::entry_in(std::vector<std::int32_t> ChunkShape::*list, int chunk,
                             int micro_batch, std::int64_t layer) const {
  const ChunkShape& of = chunks_[static_cast<std::size_t>(chunk)];
  return entry_of(of.*list, (first_entry_ + micro_batch) * of.range.layers + layer);
}

LayerActivations Stage::forward_acts(int chunk, int micro_batch) const {
  const ChunkShape& of = chunks_[static_cast<std::size_t>(chunk)];
  const std::span<const std::int32_t> all(of.activations);
  const auto layers = std::min(static_cast<std::size_t>(of.range.layers), all.size());
  const std::size_t first =
      static_cast<std::size_t>(first_entry_ + micro_batch) * layers % all.size();
  return {layer_shape_, buffers_.activations, all.subspan(first, layers)};
}

BlockActivations& Stage::acts_of(int chunk, int micro_batch, std::int64_t layer) {
  const std::int32_t entry = entry_in(&ChunkShape::activations, chunk, micro_batch, layer);
  return buffers_.activations[static_cast<std::size_t>(entry)];
}

Stage::Kept* Stage::kept_of(int chunk, int micro_batch, std::int64_t layer) {
  const std::int32_t entry = entry_in(&ChunkShape::gradients, chunk, micro_batch, layer);
  return entry < 0 ? nullptr : &buffers_.kept[static_cast<std::size_t>(entry)];
}

BlockActivations& Stage::recomputed_of(int chunk, int micro_batch, std::int64_t layer) {
  const std::int32_t entry = entry_in(&ChunkShape::recomputed, chunk, micro_batch, layer);
  expect(entry >= 0, "R of a micro-batch that has no memory for it");
  return buffers_.recomputed[static_cast<std::size_t>(entry)];
}

const BlockGradients& Stage::gradients_in_turns(std::int64_t layer) const {
  return buffers_.gradients[static_cast<std::size_t>((layer + 2) % 2)];
}

StreamGradient Stage::dy_of(int chunk, int micro_batch, std::int64_t layer) {
  if (kept_of(chunk, micro_batch, std::max<std::int64_t>(layer, 0)) == nullptr)
    return gradients_in_turns(layer).mlp.stream(layer_shape_.config);
  if (layer >= 0)
    return kept_of(chunk, micro_batch, layer)->gradients.mlp.stream(layer_shape_.config);
  const std::int32_t entry = entry_of(chunks_[static_cast<std::size_t>(chunk)].embedding_gradients,
                                      first_entry_ + micro_batch);
  return {entry < 0 ? buffers_.input_gradient_TC
                    : buffers_.embedding_gradients_TC[static_cast<std::size_t>(entry)]};
}

LayerShape Stage::shape_of(int chunk, std::int64_t layer) const {
  return layer_shape_.of(local_.layer(params_of(chunk).range.first_layer + layer));
}

BlockActivations Stage::own_acts(int chunk, int micro_batch, std::int64_t layer) {
  BlockActivations acts = acts_of(chunk, micro_batch, layer);
  const Kept* kept = kept_of(chunk, micro_batch, layer);
  if (ends_of(chunk, micro_batch).recomputed)
    acts = with_recomputed(layer_shape_, acts, recomputed_of(chunk, micro_batch, layer));
  else if (kept != nullptr && !layer_shape_.exchanges())
    BlockActivations::each_of_weight(
        layer_shape_, [](const TensorSize&, TensorView& view, const TensorView& by) { view = by; },
        acts, kept->acts);
  return fitted(shape_of(chunk, layer), acts);
}

BlockGradients Stage::gradients_of_b(int chunk, int micro_batch, std::int64_t layer) {
  const Kept* kept = kept_of(chunk, micro_batch, layer);
  return fitted(shape_of(chunk, layer),
                exchanged_in(layer_shape_, buffers_.spare,
                             kept == nullptr ? gradients_in_turns(layer) : kept->gradients));
}

BlockGradients Stage::gradients_of_w(int chunk, int micro_batch, std::int64_t layer) {
  const Kept* kept = kept_of(chunk, micro_batch, layer);
  expect(kept != nullptr, "W of a micro-batch whose backward is one action");
  return fitted(shape_of(chunk, layer),
                exchanged_in(layer_shape_, acts_of(chunk, micro_batch, layer), kept->gradients));
}

int Stage::slot(int chunk, int micro_batch) const {
  return entry_of(chunks_[static_cast<std::size_t>(chunk)].ends, first_entry_ + micro_batch);
}

Stage::Ends& Stage::ends_of(int chunk, int micro_batch) {
  return buffers_.ends[static_cast<std::size_t>(slot(chunk, micro_batch))];
}

WeightReader Stage::reader_of(int chunk, ActionKind kind) const {
  return {store_, reads_.at({&params_of(chunk), kind})};
}

int Stage::block_of_layer(const ChunkParams& chunk, std::int64_t layer) const {
  return params_.block_of(chunk.blocks[static_cast<std::size_t>(layer)].attention.in.weight.first);
}

TensorView Stage::boundary(int chunk, int micro_batch, Boundary which) {
  switch (which) {
    case Boundary::kInput:
      return acts_of(chunk, micro_batch, 0).attention.norm.s_TC;
    case Boundary::kOutput:
      return ends_of(chunk, micro_batch).out_SC;
    case Boundary::kOutputGradient:
    case Boundary::kInputGradient:
      return ends_of(chunk, micro_batch).gradient_SC;
  }
  throw InternalError("a boundary of no kind");
}

void Stage::copy(TensorView to, TensorView from) {
  copy_bytes(context_, to.data, from.data, from.bytes());
}

void Stage::embed(const ModelPass& pass, WeightReader& weights, const ChunkParams& chunk,
                  const MicroBatch& micro_batch, const BlockActivations& first) {
  const ParamStore::Lease lease = weights.next();
  embed_tokens(context_, axes_.tensor, lease, chunk,
               {micro_batch.input_ids, micro_batch.positions, vocabulary_, config_.vocab_size,
                embedding_scale(config_, store_.compute())},
               {first.attention.norm.s_TC, buffers_.forward.branch_TC});
  drop_stream(pass, first.attention.norm.s_TC);
}

void Stage::run_head(const ModelPass& pass, WeightReader& weights, const ChunkParams& chunk,
                     const ForwardOf& of, ConstTensorView stream) {
  const Ends& ends = of.ends;
  const ParamStore::Lease norm = weights.next();
  final_norm_forward(pass, weights_of(norm, chunk.final_norm), ends.final_norm,
                     axes_.tensor.residual_rows(ends.final_n_TC),
                     axes_.tensor.residual_rows(buffers_.forward.branch_TC), stream);
  axes_.tensor.all_gather(ends.final_n_TC);
  const ParamStore::Lease head = weights.next();
  head_loss(context_, axes_.tensor, buffers_.head,
            {ends.final_n_TC, head.padded_weight(chunk.head), of.micro_batch.targets, vocabulary_,
             loss_sum_.view(), head_adapter(head, chunk), pass.adapters.dropout},
            of.training);
}

void Stage::run_forward(int chunk, const ForwardOf& of) {
  const ChunkParams& params = params_of(chunk);
  const ModelPass pass = pass_of(of.micro_batch, Direction::kForward);
  WeightReader weights = reader_of(chunk, ActionKind::kForward);
  if (params.range.embedding) embed(pass, weights, params, of.micro_batch, of.acts[0]);
  const ConstTensorView stream = forward_layers(pass, weights, params, of.acts, buffers_.forward);
  if (params.range.head) return run_head(pass, weights, params, of, stream);
  leave_part(context_, of.ends.out_SC, axes_.tensor.residual_rows(buffers_.forward.branch_TC),
             stream);
}

void Stage::forward(int chunk, int micro_batch) {
  const ChunkParams& params = params_of(chunk);
  const MicroBatch& batch = micro_batches_[static_cast<std::size_t>(micro_batch)];
  ForwardOf of{batch, forward_acts(chunk, micro_batch), ends_of(chunk, micro_batch), nullptr};
  if (!params.range.head || evaluating_) return run_forward(chunk, of);
  Gradients& sink = store_.gradients();
  const int block = params_.block_of(params.head_gradient);
  sink.open(context_, block);
  const Gradients::Product product = sink.padded_product(params.head_gradient);
  HeadTraining training;
  training.dweight_VC = product.gradient;
  training.accumulate = product.accumulate;
  training.scale = std::as_const(loss_scale_).view();
  training.z_loss = z_loss_;
  training.square_sum = square_sum_.view();
  training.adapter =
      gradients_of(sink, params.head_adapter, {params.head, params.head}, {}, RowPadding::kTaken);
  training.input = first_trained(chunk) < params.range.layers;
  of.training = &training;
  run_forward(chunk, of);
  sink.close(context_, block, false);
}

void Stage::recompute(int chunk, int micro_batch) {
  const ChunkParams& params = params_of(chunk);
  const ModelPass pass =
      pass_of(micro_batches_[static_cast<std::size_t>(micro_batch)], Direction::kBackward);
  WeightReader weights = reader_of(chunk, ActionKind::kRecompute);
  ends_of(chunk, micro_batch).recomputed = true;
  for (std::int64_t layer = first_trained(chunk); layer < params.range.layers; ++layer) {
    const ParamStore::Lease lease = weights.next();
    const BlockActivations acts = own_acts(chunk, micro_batch, layer);
    block_recompute(
        pass.layer(params.range.first_layer + layer),
        with_kept(weights_of(lease, params.blocks[static_cast<std::size_t>(layer)]), acts), acts,
        fitted(shape_of(chunk, layer), buffers_.forward), shape_.recompute);
  }
}

double Stage::number(const Buffer& one) {
  double value = 0;
  copy_out(context_, std::as_writable_bytes(std::span(&value, 1)), one.view());
  return value;
}

double Stage::loss_sum() { return number(loss_sum_); }

double Stage::square_sum() { return z_loss_ == 0 ? 0 : number(square_sum_); }

void Stage::begin_evaluation(const MicroBatch& micro_batch) {
  first_entry_ = 0;
  micro_batches_ = device_batches_.bring(context_, {&micro_batch, 1});
  evaluating_ = true;
  begin_experts({});
  clear(context_, loss_sum_.view());
}

double Stage::evaluate(const MicroBatch& micro_batch) {
  begin_evaluation(micro_batch);
  forward(0, 0);
  return loss_sum();
}

void Stage::backward_head(WeightReader& weights, int chunk, int micro_batch) {
  const ChunkParams& params = params_of(chunk);
  const Ends& ends = ends_of(chunk, micro_batch);
  const TensorAxis& tensor = axes_.tensor;
  const std::int64_t last = params.range.layers - 1;
  const ParamStore::Lease lease = weights.next();
  Gradients& sink = store_.gradients();
  if (!split()) sink.open(context_, params_.block_of(params.final_norm.weight));
  NormBackward norm =
      backward_of(config_.norm, weights_of(lease, params.final_norm), ends.final_norm,
                  norm_gradients(context_, sink, params.final_norm, ends.final_norm_gradients));
  const StreamGradient dy = dy_of(chunk, micro_batch, last);
  norm.dx_TC = tensor.residual_rows(dy.ds_TC);
  norm.dy_TC = tensor.residual_rows(ends.final_n_TC);
  norm.amax_1 = dy.amax_1;
  if (dy.amax_1.given()) clear(context_, dy.amax_1);
  norm_backward(context_, norm);
}

void Stage::backward_embedding(int chunk, int micro_batch) {
  const ChunkParams& params = params_of(chunk);
  const MicroBatch& batch = micro_batches_[static_cast<std::size_t>(micro_batch)];
  const TensorView d = dy_of(chunk, micro_batch, -1).ds_TC;
  Gradients& sink = store_.gradients();
  sink.open(context_, params_.block_of(params.embedding));
  drop_stream(pass_of(batch, Direction::kBackward), axes_.tensor.residual_rows(d));
  if (const float factor = embedding_scale(config_, store_.compute()); factor != 1)
    scale(context_, axes_.tensor.residual_rows(d), factor);
  axes_.tensor.all_gather(d);
  sink.add_looked_up(context_, params.embedding, batch.input_ids, d, vocabulary_.first,
                     config_.vocab_size);
  if (params.position_embedding == kNoParam) return;
  if (const TensorView positions = sink.sum(params.position_embedding); positions.given())
    embedding_backward(context_, positions, batch.positions, d);
}

/// Copies the gradient of the residual stream behind the chunk to where its last layer reads it.
void Stage::begin_backward(WeightReader& weights, int chunk, int micro_batch) {
  const ChunkParams& params = params_of(chunk);
  if (first_trained(chunk) == params.range.layers) return;
  if (params.range.head) return backward_head(weights, chunk, micro_batch);
  const TensorView received = ends_of(chunk, micro_batch).gradient_SC;
  const StreamGradient dy = dy_of(chunk, micro_batch, params.range.layers - 1);
  copy_bytes(context_, axes_.tensor.residual_rows(dy.ds_TC).data, received.data, received.bytes());
  if (!dy.amax_1.given()) return;
  clear(context_, dy.amax_1);
  leave_quantized(context_, {{}, dy.amax_1}, dy.ds_TC);
}

/// B of one layer, after recomputing what it needs unless R has; W too where both are one action.
void Stage::backward_layer(const ModelPass& pass, WeightReader& reader, int chunk, int micro_batch,
                           std::int64_t layer, BackwardHalves halves) {
  const ChunkParams& chunk_params = params_of(chunk);
  const BlockParams& params = chunk_params.blocks[static_cast<std::size_t>(layer)];
  const BlockActivations acts = own_acts(chunk, micro_batch, layer);
  const BlockGradients gradients = gradients_of_b(chunk, micro_batch, layer);
  const StreamGradient ds1 = dy_of(chunk, micro_batch, layer - 1);
  const ParamStore::Lease lease = reader.next();
  const BlockWeights weights = with_kept(weights_of(lease, params), acts, &gradients);
  const LayerPass layer_pass = pass.layer(chunk_params.range.first_layer + layer);
  Gradients& sink = store_.gradients();
  const Ends& ends = ends_of(chunk, micro_batch);
  if (!ends.recomputed)
    block_recompute(layer_pass, weights, acts, fitted(shape_of(chunk, layer), buffers_.forward),
                    shape_.recompute);
  const BlockBackwardArgs args{acts, gradients, sink, params};
  if (halves == BackwardHalves::kBoth) {
    sink.open(context_, block_of_layer(chunk_params, layer));
    block_backward(layer_pass, weights, args, buffers_.backward, ds1);
  } else {
    block_backward_input(layer_pass, weights, args, buffers_.backward, ds1);
    // What W needs takes the place of what nobody needs any more; its memory serves the next B.
    exchange(layer_shape_, acts_of(chunk, micro_batch, layer), buffers_.spare);
    // So does what R has left where the next R writes.
    if (ends.recomputed && !layer_shape_.exchanges())
      BlockActivations::each_of_weight(
          layer_shape_,
          [](const TensorSize&, TensorView& view, TensorView& next) { std::swap(view, next); },
          kept_of(chunk, micro_batch, layer)->acts, recomputed_of(chunk, micro_batch, layer));
  }
}

/// Behind B of the layers. Below the first that is trained nobody reads what is sent.
void Stage::send_gradient(int chunk, int micro_batch) {
  Ends& ends = ends_of(chunk, micro_batch);
  ends.recomputed = false;
  if (params_of(chunk).range.embedding || first_trained(chunk) > 0) return;
  const TensorView sent = ends.gradient_SC;
  copy_bytes(context_, sent.data,
             axes_.tensor.residual_rows(dy_of(chunk, micro_batch, -1).ds_TC).data, sent.bytes());
}

void Stage::weight_layer(const ModelPass& pass, int chunk, int micro_batch, std::int64_t layer) {
  const ChunkParams& params = params_of(chunk);
  store_.gradients().open(context_, block_of_layer(params, layer));
  block_backward_weight(
      pass.layer(params.range.first_layer + layer),
      {own_acts(chunk, micro_batch, layer), gradients_of_w(chunk, micro_batch, layer),
       store_.gradients(), params.blocks[static_cast<std::size_t>(layer)]});
}

/// W of the head: its product has been made in F, the norm's sums in B.
void Stage::end_head(int chunk, int micro_batch, bool last) {
  const ChunkParams& params = params_of(chunk);
  if (!params.range.head) return;
  Gradients& sink = store_.gradients();
  sink.close(context_, params_.block_of(params.head_gradient), last);
  const int block = params_.block_of(params.final_norm.weight);
  sink.open(context_, block);
  add_kept(context_, sink, params.final_norm, ends_of(chunk, micro_batch).final_norm_gradients);
  sink.close(context_, block, last);
}

/// What follows the weight gradients of the layers.
void Stage::end_backward(int chunk, int micro_batch, bool last) {
  const ChunkParams& params = params_of(chunk);
  if (!params.range.embedding) return;
  if (!params_.metas[static_cast<std::size_t>(params.embedding)].base)
    backward_embedding(chunk, micro_batch);
  store_.gradients().close(context_, params_.block_of(params.embedding), last);
}

void Stage::backward(int chunk, int micro_batch, LastMicroBatch last) {
  const ChunkParams& params = params_of(chunk);
  const ModelPass pass =
      pass_of(micro_batches_[static_cast<std::size_t>(micro_batch)], Direction::kBackward);
  const bool closes = last == LastMicroBatch::kYes;
  WeightReader weights = reader_of(chunk, ActionKind::kBackward);
  begin_backward(weights, chunk, micro_batch);
  end_head(chunk, micro_batch, closes);
  for (std::int64_t layer = params.range.layers - 1; layer >= 0; --layer) {
    if (layer >= first_trained(chunk))
      backward_layer(pass, weights, chunk, micro_batch, layer, BackwardHalves::kBoth);
    store_.gradients().close(context_, block_of_layer(params, layer), closes);
  }
  send_gradient(chunk, micro_batch);
  end_backward(chunk, micro_batch, closes);
}

void Stage::backward_input(int chunk, int micro_batch) {
  expect(kept_of(chunk, micro_batch, 0) != nullptr, "B without W where they are one action");
  const ModelPass pass =
      pass_of(micro_batches_[static_cast<std::size_t>(micro_batch)], Direction::kBackward);
  WeightReader weights = reader_of(chunk, ActionKind::kBackward);
  begin_backward(weights, chunk, micro_batch);
  for (std::int64_t layer = params_of(chunk).range.layers - 1; layer >= first_trained(chunk);
       --layer)
    backward_layer(pass, weights, chunk, micro_batch, layer, BackwardHalves::kInput);
  send_gradient(chunk, micro_batch);
}

void Stage::backward_weight(int chunk, int micro_batch, LastMicroBatch last) {
  const ModelPass pass =
      pass_of(micro_batches_[static_cast<std::size_t>(micro_batch)], Direction::kBackward);
  const bool closes = last == LastMicroBatch::kYes;
  end_head(chunk, micro_batch, closes);
  for (std::int64_t layer = params_of(chunk).range.layers - 1; layer >= 0; --layer) {
    if (layer >= first_trained(chunk)) weight_layer(pass, chunk, micro_batch, layer);
    store_.gradients().close(context_, block_of_layer(params_of(chunk), layer), closes);
  }
  end_backward(chunk, micro_batch, closes);
}

}  // namespace trireme
