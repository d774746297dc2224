#include "model/stage.h"

#include <algorithm>
#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "model/rope_table.h"
#include "tensor/transfer.h"

namespace trireme {

BlockShape Stage::block_shape(const ModelConfig& local, const StageShape& shape, DType compute) {
  BlockShape block{local};
  block.sequences = shape.sequences;
  block.tokens = shape.local_tokens();
  block.stream_tokens =
      TensorAxis::stream_tokens(block.tokens, shape.cut.tensor.extent, shape.cut.sequence_parallel);
  block.compute = compute;
  block.context_extent = shape.cut.context.extent;
  block.context_method = shape.cut.context_method;
  // Nothing is kept for a backward pass that does not come.
  if (shape.purpose != StagePurpose::kEvaluation) block.recompute = shape.recompute;
  return block;
}

Stage::Buffers Stage::lay_out(ArenaCursor& arena, const ModelConfig& config,
                              const StageShape& shape, DType compute) {
  const ModelConfig local = config_of_place(config, shape.cut.tensor);
  const BlockShape block = block_shape(local, shape, compute);
  const bool training = shape.purpose != StagePurpose::kEvaluation;
  const auto wide = [&] { return arena.take(compute, {block.tokens, config.hidden}); };
  const auto row = [&] { return arena.take(DType::kF32, {block.stream_tokens}); };
  Buffers buffers;
  const BlockActivations shared = lay_out_activations(arena, block, Keep::kShared);
  for (int i = 0; i < shape.in_flight; ++i) {
    Slot slot;
    const std::int64_t kept = training ? config.layers : std::min<std::int64_t>(2, config.layers);
    for (std::int64_t layer = 0; layer < kept; ++layer) {
      slot.blocks.push_back(joined(lay_out_activations(arena, block, Keep::kEachLayer), shared));
    }
    slot.final_s_TC = arena.take(compute, {block.stream_tokens, config.hidden});
    slot.final_n_TC = wide();
    if (config.norm == NormKind::kLayer) slot.final_mean_T = row();
    slot.final_rstd_T = row();
    if (training) slot.dn_TC = wide();
    buffers.slots.push_back(std::move(slot));
  }
  const auto take_gradients = [&] {
    BlockGradients gradients = lay_out_gradients(arena, block);
    gradients.dy_TC = wide();
    return gradients;
  };
  if (shape.purpose == StagePurpose::kTrainingSplit) {
    // Each micro-batch keeps a set for every layer until its W, and before them what takes the
    // gradient of the embedding.
    for (int i = 0; i < shape.in_flight; ++i) {
      buffers.gradients.emplace_back().dy_TC = wide();
      for (std::int64_t layer = 0; layer < config.layers; ++layer)
        buffers.gradients.push_back(take_gradients());
    }
  }
  const auto forward = [&] { buffers.forward = lay_out_forward_scratch(arena, block); };
  const auto head = [&] {
    buffers.head =
        lay_out_head(arena, {config.vocab_size, block.tokens, compute, shape.cut.tensor});
  };
  const auto backward = [&] {
    if (!training) return;
    if (shape.purpose == StagePurpose::kTraining) {
      // Layers share one set; only the gradient of the stream goes to and fro between two buffers.
      buffers.gradients = {take_gradients()};
      buffers.gradients.push_back(buffers.gradients.front());
      buffers.gradients.back().dy_TC = wide();
    }
    buffers.backward = lay_out_backward_scratch(arena, block);
  };
  if (block.recompute == Recompute::kFull) {  // forward runs in the middle of backward
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
      local_(config_of_place(config, shape.cut.tensor)),
      params_(params),
      store_(store),
      shape_(shape),
      axes_(std::move(axes)),
      vocabulary_(vocabulary_part(config.vocab_size, shape.cut.tensor)),
      memory_(context.device(),
              static_cast<std::size_t>(buffer_bytes(config, shape, store.compute()))),
      loss_sum_(DType::kF64, {1}, context.device()) {
  expect(axes_.tensor.place() == shape.cut.tensor && axes_.context.place() == shape.cut.context,
         "a stage of another cut than its axes");
  ArenaCursor arena(memory_.data());
  buffers_ = lay_out(arena, config, shape, store.compute());
  if (config.position == PositionKind::kRope)
    rope_table_ = make_rope_table(context, config.rope, config.head_dim, shape.tokens);
}

void Stage::begin_step(std::span<const MicroBatch> micro_batches, std::int64_t target_count,
                       const std::function<void(int)>& gradients_ready) {
  micro_batches_ = device_batches_.bring(context_, micro_batches);
  target_count_ = target_count;
  gradients_ready_ = gradients_ready;
  rewind();
}

void Stage::rewind() {
  clear(context_, loss_sum_.view());
  head_accumulate_ = block_accumulate_ = Accumulate::kNo;
}

BlockPass Stage::pass_of(const MicroBatch& micro_batch) {
  const std::int64_t tokens = shape_.tokens / shape_.cut.context.extent;
  expect(micro_batch.sequences == shape_.sequences && micro_batch.tokens == tokens,
         "a micro-batch of {} x {} tokens in a stage made for {} x {}", micro_batch.sequences,
         micro_batch.tokens, shape_.sequences, tokens);
  AttentionMask mask;
  mask.sequences = micro_batch.sequences;
  mask.q = mask.kv = axes_.context.own(tokens);
  mask.first_key_T = micro_batch.first_key;
  return {context_, local_, axes_.tensor, axes_.context, rope_table_.view(), micro_batch.positions,
          mask};
}

const BlockActivations& Stage::acts_of(const Slot& slot, std::size_t layer) const {
  return slot.blocks[layer % slot.blocks.size()];
}

const BlockGradients& Stage::gradients_of_layer(int micro_batch, std::int64_t layer) const {
  const std::int64_t set = shape_.purpose == StagePurpose::kTrainingSplit
                               ? (micro_batch % shape_.in_flight) * (config_.layers + 1) + layer + 1
                               : (layer + 2) % 2;
  return buffers_.gradients[static_cast<std::size_t>(set)];
}

Stage::Slot& Stage::slot_of(int micro_batch) {
  return buffers_.slots[static_cast<std::size_t>(micro_batch) % buffers_.slots.size()];
}

void Stage::embed(const MicroBatch& micro_batch, const BlockActivations& first) {
  const ParamStore::Lease lease = store_.acquire(0, 1);
  const bool cut = axes_.tensor.extent() > 1;
  EmbeddingForward embedding;
  embedding.out_TC = cut ? buffers_.forward.branch_TC : first.s1_TC;
  embedding.ids_T = micro_batch.input_ids;
  embedding.table_VC = lease.weight(params_.embedding);
  embedding.first_row = vocabulary_.first;
  embedding.vocabulary = config_.vocab_size;
  if (params_.position_embedding != kNoParam) {
    embedding.positions_T = micro_batch.positions;
    embedding.position_table_PC = lease.weight(params_.position_embedding);
  }
  embedding_forward(context_, embedding);
  if (!cut) return;
  axes_.tensor.to_stream(embedding.out_TC);
  const TensorView stream = axes_.tensor.stream_rows(embedding.out_TC);
  copy_bytes(context_, first.s1_TC.data, stream.data, stream.bytes());
}

void Stage::run_forward(const MicroBatch& micro_batch, Slot& slot, const HeadTraining* training) {
  const BlockPass pass = pass_of(micro_batch);
  const auto layers = static_cast<int>(params_.blocks.size());
  embed(micro_batch, acts_of(slot, 0));
  ConstTensorView stream;
  for (int layer = 0; layer < layers; ++layer) {
    const ParamStore::Lease lease = store_.acquire(layer + 1, layer + 2);
    const BlockActivations& acts = acts_of(slot, static_cast<std::size_t>(layer));
    block_forward(pass, weights_of(lease, params_.blocks[static_cast<std::size_t>(layer)], local_),
                  acts, buffers_.forward, stream);
    stream = acts.s2_TC;
  }
  const ParamStore::Lease lease = store_.acquire(layers + 1, params_.tied          ? 0
                                                             : training != nullptr ? layers
                                                                                   : -1);
  const NormWeights weights = weights_of(lease, params_.final_norm);
  NormForward norm;
  norm.op = norm_op(config_);
  norm.eps = config_.norm_eps;
  norm.y_TC = axes_.tensor.stream_rows(slot.final_n_TC);
  norm.sum_TC = slot.final_s_TC;
  norm.mean_T = slot.final_mean_T;
  norm.rstd_T = slot.final_rstd_T;
  norm.x_TC = axes_.tensor.stream_rows(buffers_.forward.branch_TC);
  norm.residual_TC = stream;
  norm.weight_C = weights.weight;
  norm.bias_C = weights.bias;
  norm_forward(context_, norm);
  axes_.tensor.to_inside(slot.final_n_TC);
  const ParamStore::Lease head = store_.acquire(params_.tied ? 0 : layers + 1);
  head_loss(context_, axes_.tensor, buffers_.head,
            {slot.final_n_TC, head.weight(params_.head), micro_batch.targets, vocabulary_,
             loss_sum_.view()},
            training);
}

void Stage::forward(int, int micro_batch) {
  Slot& slot = slot_of(micro_batch);
  if (!params_.tied) store_.open_gradients(context_, static_cast<int>(config_.layers) + 1);
  HeadTraining training;
  training.dn_TC = slot.dn_TC;
  training.dweight_VC =
      store_.gradient({params_.head, params_.head}, params_.tied ? Home::kSecond : Home::kOwner);
  training.accumulate = accumulate_or_set(std::exchange(head_accumulate_, Accumulate::kYes));
  training.scale =
      static_cast<float>(1.0 / static_cast<double>(std::max<std::int64_t>(1, target_count_)));
  run_forward(micro_batches_[static_cast<std::size_t>(micro_batch)], slot, &training);
}

double Stage::loss_sum() {
  double sum = 0;
  copy_out(context_, std::as_writable_bytes(std::span(&sum, 1)), loss_sum_.view());
  return sum;
}

double Stage::evaluate(const MicroBatch& micro_batch) {
  clear(context_, loss_sum_.view());
  run_forward(device_batches_.bring(context_, {&micro_batch, 1}).front(), buffers_.slots.front(),
              nullptr);
  return loss_sum();
}

void Stage::backward_head(int micro_batch) {
  const Slot& slot = slot_of(micro_batch);
  const auto layers = static_cast<int>(config_.layers);
  const TensorAxis& tensor = axes_.tensor;
  const ParamStore::Lease lease = store_.acquire(layers + 1, layers);
  store_.open_gradients(context_, layers + 1);
  NormBackward norm;
  norm.op = norm_op(config_);
  norm.dx_TC = tensor.stream_rows(gradients_of_layer(micro_batch, config_.layers - 1).dy_TC);
  norm.dweight_C = store_.gradient(params_.final_norm.weight);
  if (params_.final_norm.bias != kNoParam) norm.dbias_C = store_.gradient(params_.final_norm.bias);
  norm.dy_TC = tensor.stream_rows(slot.dn_TC);
  norm.s_TC = slot.final_s_TC;
  norm.weight_C = lease.weight(params_.final_norm.weight);
  norm.mean_T = slot.final_mean_T;
  norm.rstd_T = slot.final_rstd_T;
  norm_backward(context_, norm);
}

void Stage::backward_embedding(int micro_batch) {
  const MicroBatch& batch = micro_batches_[static_cast<std::size_t>(micro_batch)];
  const TensorView d = gradients_of_layer(micro_batch, -1).dy_TC;
  store_.open_gradients(context_, 0);
  axes_.tensor.to_inside(d);
  embedding_backward(context_, store_.gradient(params_.embedding), batch.input_ids, d,
                     vocabulary_.first, config_.vocab_size);
  if (params_.position_embedding != kNoParam) {
    embedding_backward(context_, store_.gradient(params_.position_embedding), batch.positions, d);
  }
}

void Stage::ready(int block, bool last) const {
  if (gradients_ready_ && (last || !store_.keeps_gradients())) gradients_ready_(block);
}

/// B of one layer, after what it needs of the forward pass again.
void Stage::backward_layer(const BlockPass& pass, int micro_batch, std::int64_t layer) {
  const BlockParams& params = params_.blocks[static_cast<std::size_t>(layer)];
  const BlockActivations& acts = acts_of(slot_of(micro_batch), static_cast<std::size_t>(layer));
  const auto block = static_cast<int>(layer) + 1;
  const ParamStore::Lease lease = store_.acquire(block, block > 1 ? block - 1 : -1);
  const BlockWeights weights = weights_of(lease, params, local_);
  store_.open_gradients(context_, block);
  block_recompute(pass, weights, acts, buffers_.forward, shape_.recompute);
  block_backward_input(pass, weights, acts, gradients_of_layer(micro_batch, layer),
                       buffers_.backward, store_, params,
                       gradients_of_layer(micro_batch, layer - 1).dy_TC);
}

void Stage::backward(int, int micro_batch, Pass pass) {
  const BlockPass block_pass = pass_of(micro_batches_[static_cast<std::size_t>(micro_batch)]);
  const bool last = pass == Pass::kLast;
  backward_head(micro_batch);
  ready(static_cast<int>(config_.layers) + 1, last);
  for (std::int64_t layer = config_.layers - 1; layer >= 0; --layer) {
    backward_layer(block_pass, micro_batch, layer);
    block_backward_weight(
        block_pass, acts_of(slot_of(micro_batch), static_cast<std::size_t>(layer)),
        gradients_of_layer(micro_batch, layer), store_,
        params_.blocks[static_cast<std::size_t>(layer)], accumulate_or_set(block_accumulate_));
    ready(static_cast<int>(layer) + 1, last);
  }
  block_accumulate_ = Accumulate::kYes;
  backward_embedding(micro_batch);
  if (last || !store_.keeps_gradients()) store_.add_tied_gradients(context_);
  ready(0, last);
}

void Stage::backward_input(int, int micro_batch) {
  expect(shape_.purpose == StagePurpose::kTrainingSplit, "B without W in a stage made for BW");
  expect(store_.keeps_gradients() && shape_.recompute == Recompute::kNone,
         "B and W apart with gradients that leave between them, or activations made twice");
  const BlockPass pass = pass_of(micro_batches_[static_cast<std::size_t>(micro_batch)]);
  backward_head(micro_batch);
  for (std::int64_t layer = config_.layers - 1; layer >= 0; --layer)
    backward_layer(pass, micro_batch, layer);
}

void Stage::backward_weight(int, int micro_batch, Pass pass) {
  const BlockPass block_pass = pass_of(micro_batches_[static_cast<std::size_t>(micro_batch)]);
  const Slot& slot = slot_of(micro_batch);
  const bool last = pass == Pass::kLast;
  ready(static_cast<int>(config_.layers) + 1, last);
  for (std::int64_t layer = config_.layers - 1; layer >= 0; --layer) {
    block_backward_weight(block_pass, acts_of(slot, static_cast<std::size_t>(layer)),
                          gradients_of_layer(micro_batch, layer), store_,
                          params_.blocks[static_cast<std::size_t>(layer)], block_accumulate_);
    ready(static_cast<int>(layer) + 1, last);
  }
  block_accumulate_ = Accumulate::kYes;
  backward_embedding(micro_batch);
  if (last) store_.add_tied_gradients(context_);
  ready(0, last);
}

}  // namespace trireme
