#include "model/stage.h"

#include <algorithm>
#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "model/walk.h"
#include "tensor/transfer.h"

namespace trireme {

namespace {

bool same_sizes(const LayerConfig& a, LayerConfig b) {
  b.attention.rope = a.attention.rope;
  b.attention.window = a.attention.window;
  b.norm.eps = a.norm.eps;
  return a == b;
}

}  // namespace

LayerShape Stage::layer_shape(const ModelConfig& local, const StageShape& shape, DType compute) {
  for (const LayerConfig& layer : local.layers)
    expect(same_sizes(layer, local.layer(0)), "layers that share buffers differ in size");
  LayerShape block{local.layer(0), local.hidden};
  block.sequences = shape.sequences;
  block.tokens = shape.local_tokens();
  block.residual_tokens = TensorAxis::residual_tokens(block.tokens, shape.cut.tensor.extent,
                                                      shape.cut.sequence_parallel);
  block.compute = compute;
  block.context_extent = shape.cut.context.extent;
  block.context_method = shape.cut.context_method;
  // Nothing is kept for a backward pass that does not come.
  if (shape.purpose != StagePurpose::kEvaluation) block.recompute = shape.recompute;
  block.split = shape.purpose == StagePurpose::kTrainingSplit;
  return block;
}

std::vector<ChunkShape> Stage::chunks_of(const ModelConfig& config, const StageShape& shape) {
  if (!shape.chunks.empty()) return shape.chunks;
  return {{whole_model(config), shape.in_flight, shape.in_flight}};
}

Stage::Slot Stage::lay_out_slot(ArenaCursor& arena, const LayerShape& layer,
                                const ChunkRange& range, StagePurpose purpose,
                                const BlockActivations& shared) {
  const bool training = purpose != StagePurpose::kEvaluation;
  const auto take = [&](const TensorSize& size, TensorView& view) { view = arena.take(size); };
  Slot slot;
  const std::int64_t kept = training ? range.layers : std::min<std::int64_t>(2, range.layers);
  for (std::int64_t i = 0; i < kept; ++i)
    slot.blocks.push_back(lay_out_activations(arena, layer, Keep::kEachLayer, shared));
  if (range.head) {
    take(layer.residual(), slot.final_norm.s_TC);
    take(layer.wide(layer.hidden), slot.final_n_TC);
    NormActivations::each_statistic(layer, take, slot.final_norm);
    if (layer.split)
      NormGradients::each(layer.config.norm, layer.hidden, take, slot.final_norm_gradients);
  } else {
    take(layer.residual(), slot.out_SC);
    if (training) take(layer.residual(), slot.dout_SC);
  }
  if (!range.embedding && training) take(layer.residual(), slot.din_SC);
  return slot;
}

/// A set for each micro-batch that waits: the gradient of the chunk's input, then every layer's.
void Stage::lay_out_kept(ArenaCursor& arena, const LayerShape& layer, const ChunkShape& part,
                         Chunk& chunk) {
  const TensorSize stream = layer.wide(layer.hidden);
  for (int i = 0; i < part.waiting; ++i) {
    chunk.kept.emplace_back().gradients.mlp.dy_TC = arena.take(stream);
    for (std::int64_t j = 0; j < part.range.layers; ++j) {
      Kept& kept = chunk.kept.emplace_back();
      kept.gradients = lay_out_gradients(arena, layer);
      kept.gradients.mlp.dy_TC = arena.take(stream);
      if (!layer.exchanges())
        kept.attended_TX = arena.take(layer.wide(layer.config.attention.q_size()));
    }
  }
}

Stage::Buffers Stage::lay_out(ArenaCursor& arena, const ModelConfig& config,
                              const StageShape& shape, DType compute) {
  const ModelConfig local = config_of_rank(config, shape.cut.tensor);
  const LayerShape layer = layer_shape(local, shape, compute);
  const bool training = shape.purpose != StagePurpose::kEvaluation;
  Buffers buffers;
  buffers.spare = lay_out_spare(arena, layer);
  bool has_head = false;
  const BlockActivations shared = lay_out_activations(arena, layer, Keep::kShared);
  for (const ChunkShape& part : chunks_of(config, shape)) {
    Chunk& chunk = buffers.chunks.emplace_back();
    has_head = has_head || part.range.head;
    const int slots = training ? part.in_flight : 1;
    for (int i = 0; i < slots; ++i)
      chunk.slots.push_back(lay_out_slot(arena, layer, part.range, shape.purpose, shared));
    if (layer.split) lay_out_kept(arena, layer, part, chunk);
    if (!training) continue;
    for (std::int64_t i = 0; i < part.recomputed * part.range.layers; ++i)
      chunk.recomputed.push_back(lay_out_activations(arena, layer, Keep::kShared));
  }
  const auto forward = [&] { buffers.forward = lay_out_forward_scratch(arena, layer); };
  const auto head = [&] {
    if (!has_head) return;
    buffers.head = lay_out_head(
        arena, {config.vocab_size, layer.tokens, compute, shape.cut.tensor, shape.device});
  };
  const auto backward = [&] {
    if (!training) return;
    if (!layer.split) {
      // Layers share one set; only the residual gradient goes to and fro between two buffers.
      buffers.gradients.assign(2, lay_out_gradients(arena, layer));
      for (BlockGradients& gradients : buffers.gradients)
        gradients.mlp.dy_TC = arena.take(layer.wide(layer.hidden));
    }
    buffers.backward = lay_out_attention_scratch(arena, layer);
  };
  if (layer.recompute == Recompute::kFull) {  // forward runs in the middle of backward
    forward();
    arena.overlay(head, backward);
  } else {
    arena.overlay(forward, head, backward);
  }
  return buffers;
}

std::int64_t Stage::buffer_bytes(const ModelConfig& config, const StageShape& shape,
                                 DType compute) {
  ArenaCursor measure;
  lay_out(measure, config, shape, compute);
  return static_cast<std::int64_t>(measure.bytes());
}

Stage::Stage(Context& context, const ModelConfig& config, const ModelParams& params,
             ParamStore& store, const StageShape& shape, StageAxes axes)
    : context_(context),
      config_(config),
      local_(config_of_rank(config, shape.cut.tensor)),
      params_(params),
      store_(store),
      shape_(shape),
      axes_(std::move(axes)),
      vocabulary_(vocabulary_part(config.vocab_size, shape.cut.tensor)),
      memory_(context.device(),
              static_cast<std::size_t>(buffer_bytes(config, shape, store.compute()))),
      layer_shape_(layer_shape(local_, shape, store.compute())),
      ropes_(context, config, shape.tokens),
      loss_sum_(DType::kF64, {1}, context.device()),
      loss_scale_(DType::kF32, {1}, context.device()) {
  expect(context.device().kind == shape.device, "a stage laid out for another device");
  expect(axes_.tensor.rank() == shape.cut.tensor && axes_.context.rank() == shape.cut.context,
         "a stage of another cut than its axes");
  expect(params.chunks.size() == chunks_of(config, shape).size(), "{} chunks with parameters of {}",
         chunks_of(config, shape).size(), params.chunks.size());
  ArenaCursor arena(memory_.data());
  buffers_ = lay_out(arena, config, shape, store.compute());
  for (const ChunkParams& chunk : params.chunks) {
    for (const ActionKind kind :
         {ActionKind::kForward, ActionKind::kRecompute, ActionKind::kBackward})
      reads_[{&chunk, kind}] = blocks_read(params, chunk, kind);
  }
}

void Stage::begin_step(std::span<const MicroBatch> micro_batches, std::int64_t target_count) {
  micro_batches_ = device_batches_.bring(context_, micro_batches);
  const auto scale =
      static_cast<float>(1.0 / static_cast<double>(std::max<std::int64_t>(1, target_count)));
  copy_bytes(context_, loss_scale_.view().data, reinterpret_cast<const std::byte*>(&scale),
             sizeof scale);
  evaluating_ = false;
}

void Stage::rewind() {
  clear(context_, loss_sum_.view());
  store_.gradients().begin_step(context_);
}

ModelPass Stage::pass_of(const MicroBatch& micro_batch) {
  const std::int64_t tokens = shape_.tokens / shape_.cut.context.extent;
  expect(micro_batch.sequences == shape_.sequences && micro_batch.tokens == tokens,
         "a micro-batch of {} x {} tokens in a stage made for {} x {}", micro_batch.sequences,
         micro_batch.tokens, shape_.sequences, tokens);
  AttentionMask mask;
  mask.sequences = micro_batch.sequences;
  mask.q = mask.kv = axes_.context.own(tokens);
  mask.first_key_T = micro_batch.first_key;
  return {context_, local_, axes_.tensor, axes_.context, ropes_, micro_batch.positions, mask};
}

const BlockActivations& Stage::acts_of(const Slot& slot, std::int64_t layer) const {
  return slot.blocks[static_cast<std::size_t>(layer) % slot.blocks.size()];
}

Stage::Kept& Stage::kept_of(int chunk, int micro_batch, std::int64_t layer) {
  std::vector<Kept>& kept = buffers_.chunks[static_cast<std::size_t>(chunk)].kept;
  const std::int64_t set = params_of(chunk).range.layers + 1;
  return kept[static_cast<std::size_t>(micro_batch * set % std::ssize(kept) + layer + 1)];
}

BlockActivations& Stage::recomputed_of(int chunk, int micro_batch, std::int64_t layer) {
  std::vector<BlockActivations>& all = buffers_.chunks[static_cast<std::size_t>(chunk)].recomputed;
  const std::int64_t set = params_of(chunk).range.layers;
  return all[static_cast<std::size_t>(micro_batch * set % std::ssize(all) + layer)];
}

TensorView Stage::dy_of(int chunk, int micro_batch, std::int64_t layer) {
  if (!split()) return buffers_.gradients[static_cast<std::size_t>((layer + 2) % 2)].mlp.dy_TC;
  return kept_of(chunk, micro_batch, layer).gradients.mlp.dy_TC;
}

BlockActivations Stage::acts_of(int chunk, int micro_batch, std::int64_t layer) {
  const Slot& slot = slot_of(chunk, micro_batch);
  BlockActivations acts = acts_of(slot, layer);
  if (slot.recomputed)
    return with_recomputed(layer_shape_, acts, recomputed_of(chunk, micro_batch, layer));
  if (!split()) return acts;
  const TensorView own = kept_of(chunk, micro_batch, layer).attended_TX;
  if (own.given()) acts.attention.attended_TX = own;
  return acts;
}

BlockGradients Stage::gradients_of_b(int chunk, int micro_batch, std::int64_t layer) {
  if (!split()) return buffers_.gradients[static_cast<std::size_t>((layer + 2) % 2)];
  return exchanged_in(layer_shape_, buffers_.spare, kept_of(chunk, micro_batch, layer).gradients);
}

BlockGradients Stage::gradients_of_w(int chunk, int micro_batch, std::int64_t layer) {
  if (!split()) return gradients_of_b(chunk, micro_batch, layer);
  return exchanged_in(layer_shape_, acts_of(slot_of(chunk, micro_batch), layer),
                      kept_of(chunk, micro_batch, layer).gradients);
}

Stage::Slot& Stage::slot_of(int chunk, int micro_batch) {
  std::vector<Slot>& slots = buffers_.chunks[static_cast<std::size_t>(chunk)].slots;
  return slots[static_cast<std::size_t>(micro_batch) % slots.size()];
}

WeightReader Stage::reader_of(int chunk, ActionKind kind) const {
  return {store_, reads_.at({&params_of(chunk), kind})};
}

int Stage::block_of_layer(const ChunkParams& chunk, std::int64_t layer) const {
  return params_.block_of(chunk.blocks[static_cast<std::size_t>(layer)].attention.in.weight.first);
}

TensorView Stage::boundary(int chunk, int micro_batch, Boundary which) {
  const Slot& slot = slot_of(chunk, micro_batch);
  switch (which) {
    case Boundary::kInput:
      return slot.blocks.front().attention.norm.s_TC;
    case Boundary::kOutput:
      return slot.out_SC;
    case Boundary::kOutputGradient:
      return slot.dout_SC;
    case Boundary::kInputGradient:
      return slot.din_SC;
  }
  throw InternalError("a boundary of no kind");
}

void Stage::copy(TensorView to, TensorView from) {
  copy_bytes(context_, to.data, from.data, from.bytes());
}

void Stage::embed(WeightReader& weights, const ChunkParams& chunk, const MicroBatch& micro_batch,
                  const BlockActivations& first) {
  const ParamStore::Lease lease = weights.next();
  embed_tokens(context_, axes_.tensor, lease, chunk,
               {micro_batch.input_ids, micro_batch.positions, vocabulary_, config_.vocab_size},
               {first.attention.norm.s_TC, buffers_.forward.branch_TC});
}

void Stage::run_head(const ModelPass& pass, WeightReader& weights, const ChunkParams& chunk,
                     const ForwardOf& of, ConstTensorView stream) {
  const Slot& slot = of.slot;
  const ParamStore::Lease norm = weights.next();
  final_norm_forward(pass, weights_of(norm, chunk.final_norm), slot.final_norm,
                     axes_.tensor.residual_rows(slot.final_n_TC),
                     axes_.tensor.residual_rows(buffers_.forward.branch_TC), stream);
  axes_.tensor.all_gather(slot.final_n_TC);
  const ParamStore::Lease head = weights.next();
  head_loss(context_, axes_.tensor, buffers_.head,
            {slot.final_n_TC, head.padded_weight(chunk.head), of.micro_batch.targets, vocabulary_,
             loss_sum_.view()},
            of.training);
}

void Stage::run_forward(int chunk, const ForwardOf& of) {
  const ChunkParams& params = params_of(chunk);
  const ModelPass pass = pass_of(of.micro_batch);
  WeightReader weights = reader_of(chunk, ActionKind::kForward);
  if (params.range.embedding) embed(weights, params, of.micro_batch, of.slot.blocks.front());
  const ConstTensorView stream =
      forward_layers(pass, weights, params, of.slot.blocks, buffers_.forward);
  if (params.range.head) return run_head(pass, weights, params, of, stream);
  leave_part(context_, of.slot.out_SC, axes_.tensor.residual_rows(buffers_.forward.branch_TC),
             stream);
}

void Stage::forward(int chunk, int micro_batch) {
  const ChunkParams& params = params_of(chunk);
  const MicroBatch& batch = micro_batches_[static_cast<std::size_t>(micro_batch)];
  Slot& slot = slot_of(chunk, micro_batch);
  if (!params.range.head || evaluating_) return run_forward(chunk, {batch, slot, nullptr});
  Gradients& sink = store_.gradients();
  const int block = params_.block_of(params.head_gradient);
  sink.open(context_, block);
  const Gradients::Product product = sink.padded_product(params.head_gradient);
  HeadTraining training;
  training.dweight_VC = product.gradient;
  training.accumulate = product.accumulate;
  training.scale = std::as_const(loss_scale_).view();
  run_forward(chunk, {batch, slot, &training});
  sink.close(context_, block, false);
}

void Stage::recompute(int chunk, int micro_batch) {
  const ChunkParams& params = params_of(chunk);
  const ModelPass pass = pass_of(micro_batches_[static_cast<std::size_t>(micro_batch)]);
  WeightReader weights = reader_of(chunk, ActionKind::kRecompute);
  slot_of(chunk, micro_batch).recomputed = true;
  for (std::int64_t layer = 0; layer < params.range.layers; ++layer) {
    const ParamStore::Lease lease = weights.next();
    block_recompute(pass.layer(params.range.first_layer + layer),
                    weights_of(lease, params.blocks[static_cast<std::size_t>(layer)]),
                    acts_of(chunk, micro_batch, layer), buffers_.forward, shape_.recompute);
  }
}

double Stage::loss_sum() {
  double sum = 0;
  copy_out(context_, std::as_writable_bytes(std::span(&sum, 1)), loss_sum_.view());
  return sum;
}

void Stage::begin_evaluation(const MicroBatch& micro_batch) {
  micro_batches_ = device_batches_.bring(context_, {&micro_batch, 1});
  evaluating_ = true;
  clear(context_, loss_sum_.view());
}

double Stage::evaluate(const MicroBatch& micro_batch) {
  begin_evaluation(micro_batch);
  forward(0, 0);
  return loss_sum();
}

void Stage::backward_head(WeightReader& weights, int chunk, int micro_batch) {
  const ChunkParams& params = params_of(chunk);
  const Slot& slot = slot_of(chunk, micro_batch);
  const TensorAxis& tensor = axes_.tensor;
  const std::int64_t last = params.range.layers - 1;
  const ParamStore::Lease lease = weights.next();
  Gradients& sink = store_.gradients();
  if (!split()) sink.open(context_, params_.block_of(params.final_norm.weight));
  NormBackward norm =
      backward_of(config_.norm, weights_of(lease, params.final_norm), slot.final_norm,
                  norm_gradients(context_, sink, params.final_norm, slot.final_norm_gradients));
  norm.dx_TC = tensor.residual_rows(dy_of(chunk, micro_batch, last));
  norm.dy_TC = tensor.residual_rows(slot.final_n_TC);
  norm_backward(context_, norm);
}

void Stage::backward_embedding(int chunk, int micro_batch) {
  const ChunkParams& params = params_of(chunk);
  const MicroBatch& batch = micro_batches_[static_cast<std::size_t>(micro_batch)];
  const TensorView d = dy_of(chunk, micro_batch, -1);
  Gradients& sink = store_.gradients();
  sink.open(context_, params_.block_of(params.embedding));
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
  if (params.range.head) return backward_head(weights, chunk, micro_batch);
  const TensorView received = slot_of(chunk, micro_batch).dout_SC;
  const TensorView dy =
      axes_.tensor.residual_rows(dy_of(chunk, micro_batch, params.range.layers - 1));
  copy_bytes(context_, dy.data, received.data, received.bytes());
}

/// B of one layer, after recomputing what it needs unless R has; W too where both are one action.
void Stage::backward_layer(const ModelPass& pass, WeightReader& reader, int chunk, int micro_batch,
                           std::int64_t layer, BackwardHalves halves) {
  const ChunkParams& chunk_params = params_of(chunk);
  const BlockParams& params = chunk_params.blocks[static_cast<std::size_t>(layer)];
  const BlockActivations acts = acts_of(chunk, micro_batch, layer);
  const BlockGradients gradients = gradients_of_b(chunk, micro_batch, layer);
  const TensorView ds1_TC = dy_of(chunk, micro_batch, layer - 1);
  const ParamStore::Lease lease = reader.next();
  const BlockWeights weights = weights_of(lease, params);
  const LayerPass layer_pass = pass.layer(chunk_params.range.first_layer + layer);
  Gradients& sink = store_.gradients();
  Slot& slot = slot_of(chunk, micro_batch);
  if (!slot.recomputed)
    block_recompute(layer_pass, weights, acts, buffers_.forward, shape_.recompute);
  const BlockBackwardArgs args{acts, gradients, sink, params};
  if (halves == BackwardHalves::kBoth) {
    sink.open(context_, block_of_layer(chunk_params, layer));
    block_backward(layer_pass, weights, args, buffers_.backward, ds1_TC);
  } else {
    block_backward_input(layer_pass, weights, args, buffers_.backward, ds1_TC);
    // What W needs takes the place of what nobody needs any more; its memory serves the next B.
    exchange(layer_shape_, slot.blocks[static_cast<std::size_t>(layer)], buffers_.spare);
    // So does attention's output, which R has left where the next R writes.
    Kept& kept = kept_of(chunk, micro_batch, layer);
    if (slot.recomputed && kept.attended_TX.given())
      std::swap(kept.attended_TX, recomputed_of(chunk, micro_batch, layer).attention.attended_TX);
  }
  if (layer > 0) return;
  slot.recomputed = false;
  if (chunk_params.range.embedding) return;
  const TensorView sent = slot.din_SC;
  copy_bytes(context_, sent.data, axes_.tensor.residual_rows(ds1_TC).data, sent.bytes());
}

void Stage::weight_layer(const ModelPass& pass, int chunk, int micro_batch, std::int64_t layer) {
  const ChunkParams& params = params_of(chunk);
  store_.gradients().open(context_, block_of_layer(params, layer));
  block_backward_weight(
      pass.layer(params.range.first_layer + layer),
      {acts_of(chunk, micro_batch, layer), gradients_of_w(chunk, micro_batch, layer),
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
  add_kept(context_, sink, params.final_norm, slot_of(chunk, micro_batch).final_norm_gradients);
  sink.close(context_, block, last);
}

/// What follows the weight gradients of the layers.
void Stage::end_backward(int chunk, int micro_batch, bool last) {
  const ChunkParams& params = params_of(chunk);
  if (!params.range.embedding) return;
  backward_embedding(chunk, micro_batch);
  store_.gradients().close(context_, params_.block_of(params.embedding), last);
}

void Stage::backward(int chunk, int micro_batch, LastMicroBatch last) {
  const ChunkParams& params = params_of(chunk);
  const ModelPass pass = pass_of(micro_batches_[static_cast<std::size_t>(micro_batch)]);
  const bool closes = last == LastMicroBatch::kYes;
  WeightReader weights = reader_of(chunk, ActionKind::kBackward);
  begin_backward(weights, chunk, micro_batch);
  end_head(chunk, micro_batch, closes);
  for (std::int64_t layer = params.range.layers - 1; layer >= 0; --layer) {
    backward_layer(pass, weights, chunk, micro_batch, layer, BackwardHalves::kBoth);
    store_.gradients().close(context_, block_of_layer(params, layer), closes);
  }
  end_backward(chunk, micro_batch, closes);
}

void Stage::backward_input(int chunk, int micro_batch) {
  expect(split(), "B without W in a stage made for BW");
  const ModelPass pass = pass_of(micro_batches_[static_cast<std::size_t>(micro_batch)]);
  WeightReader weights = reader_of(chunk, ActionKind::kBackward);
  begin_backward(weights, chunk, micro_batch);
  for (std::int64_t layer = params_of(chunk).range.layers - 1; layer >= 0; --layer)
    backward_layer(pass, weights, chunk, micro_batch, layer, BackwardHalves::kInput);
}

void Stage::backward_weight(int chunk, int micro_batch, LastMicroBatch last) {
  const ModelPass pass = pass_of(micro_batches_[static_cast<std::size_t>(micro_batch)]);
  const bool closes = last == LastMicroBatch::kYes;
  end_head(chunk, micro_batch, closes);
  for (std::int64_t layer = params_of(chunk).range.layers - 1; layer >= 0; --layer) {
    weight_layer(pass, chunk, micro_batch, layer);
    store_.gradients().close(context_, block_of_layer(params_of(chunk), layer), closes);
  }
  end_backward(chunk, micro_batch, closes);
}

}  // namespace trireme
