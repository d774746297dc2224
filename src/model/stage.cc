#include "model/stage.h"

#include <algorithm>
#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "model/rope_table.h"
#include "tensor/transfer.h"

namespace trireme {

Stage::Buffers Stage::lay_out(ArenaCursor& arena, const ModelConfig& config,
                              const StageShape& shape, DType compute) {
  const std::int64_t tokens = shape.sequences * shape.tokens;
  const bool training = shape.purpose != StagePurpose::kEvaluation;
  const auto wide = [&] { return arena.take(compute, {tokens, config.hidden}); };
  Buffers buffers;
  for (int i = 0; i < shape.in_flight; ++i) {
    Slot slot;
    const std::int64_t kept = training ? config.layers : std::min<std::int64_t>(2, config.layers);
    for (std::int64_t layer = 0; layer < kept; ++layer) {
      slot.blocks.push_back(lay_out_activations(arena, config, tokens, compute));
    }
    slot.final_s_TC = wide();
    slot.final_n_TC = wide();
    if (config.norm == NormKind::kLayer) slot.final_mean_T = arena.take(DType::kF32, {tokens});
    slot.final_rstd_T = arena.take(DType::kF32, {tokens});
    if (training) slot.dn_TC = wide();
    buffers.slots.push_back(std::move(slot));
  }
  const auto take_gradients = [&] {
    BlockGradients gradients = lay_out_gradients(arena, config, tokens, compute);
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
  const auto forward = [&] {
    buffers.forward = lay_out_forward_scratch(arena, config, tokens, compute);
  };
  const auto head = [&] { buffers.head = lay_out_head(arena, config, tokens, compute); };
  const auto backward = [&] {
    if (!training) return;
    if (shape.purpose == StagePurpose::kTraining) {
      // Layers share one set; only the gradient of the stream goes to and fro between two buffers.
      buffers.gradients = {take_gradients()};
      buffers.gradients.push_back(buffers.gradients.front());
      buffers.gradients.back().dy_TC = wide();
    }
    buffers.backward = lay_out_backward_scratch(arena, config, tokens, compute);
  };
  arena.overlay(forward, head, backward);
  return buffers;
}

std::int64_t Stage::buffer_bytes(const ModelConfig& config, const StageShape& shape,
                                 DType compute) {
  ArenaCursor measure;
  lay_out(measure, config, shape, compute);
  return static_cast<std::int64_t>(measure.bytes());
}

Stage::Stage(Context& context, const ModelConfig& config, const ModelParams& params,
             ParamStore& store, const StageShape& shape)
    : context_(context),
      config_(config),
      params_(params),
      store_(store),
      shape_(shape),
      memory_(context.device(),
              static_cast<std::size_t>(buffer_bytes(config, shape, store.compute()))),
      loss_sum_(DType::kF64, {1}, context.device()),
      range_{0, shape.tokens} {
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
  expect(micro_batch.sequences == shape_.sequences && micro_batch.tokens == shape_.tokens,
         "a micro-batch of {} x {} tokens in a stage made for {} x {}", micro_batch.sequences,
         micro_batch.tokens, shape_.sequences, shape_.tokens);
  AttentionMask mask;
  mask.sequences = micro_batch.sequences;
  mask.q = {&range_, 1};
  mask.kv = {&range_, 1};
  mask.first_key_T = micro_batch.first_key;
  return {context_, config_, rope_table_.view(), micro_batch.positions, mask};
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

void Stage::run_forward(const MicroBatch& micro_batch, Slot& slot, const HeadTraining* training) {
  const BlockPass pass = pass_of(micro_batch);
  {
    const ParamStore::Lease lease = store_.acquire(0);
    EmbeddingForward embedding;
    embedding.out_TC = acts_of(slot, 0).s1_TC;
    embedding.ids_T = micro_batch.input_ids;
    embedding.table_VC = lease.weight(params_.embedding);
    if (params_.position_embedding != kNoParam) {
      embedding.positions_T = micro_batch.positions;
      embedding.position_table_PC = lease.weight(params_.position_embedding);
    }
    embedding_forward(context_, embedding);
  }
  ConstTensorView stream;
  for (std::size_t layer = 0; layer < params_.blocks.size(); ++layer) {
    const ParamStore::Lease lease = store_.acquire(static_cast<int>(layer) + 1);
    const BlockActivations& acts = acts_of(slot, layer);
    block_forward(pass, weights_of(lease, params_.blocks[layer], config_), acts, buffers_.forward,
                  stream);
    stream = acts.s2_TC;
  }
  const ParamStore::Lease lease = store_.acquire(static_cast<int>(params_.blocks.size()) + 1);
  const NormWeights weights = weights_of(lease, params_.final_norm);
  NormForward norm;
  norm.op = norm_op(config_);
  norm.eps = config_.norm_eps;
  norm.y_TC = slot.final_n_TC;
  norm.sum_TC = slot.final_s_TC;
  norm.mean_T = slot.final_mean_T;
  norm.rstd_T = slot.final_rstd_T;
  norm.x_TC = buffers_.forward.branch_TC;
  norm.residual_TC = stream;
  norm.weight_C = weights.weight;
  norm.bias_C = weights.bias;
  norm_forward(context_, norm);
  head_loss(context_, buffers_.head, slot.final_n_TC, lease.weight(params_.head),
            micro_batch.targets, training, loss_sum_.view());
}

void Stage::forward(int, int micro_batch) {
  Slot& slot = slot_of(micro_batch);
  HeadTraining training;
  training.dn_TC = slot.dn_TC;
  training.dweight_VC =
      store_.gradient({params_.head, params_.head}, params_.tied ? Home::kSecond : Home::kOwner);
  training.accumulate = std::exchange(head_accumulate_, Accumulate::kYes);
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
  const ParamStore::Lease lease = store_.acquire(static_cast<int>(params_.blocks.size()) + 1);
  NormBackward norm;
  norm.op = norm_op(config_);
  norm.dx_TC = gradients_of_layer(micro_batch, config_.layers - 1).dy_TC;
  norm.dweight_C = store_.gradient(params_.final_norm.weight);
  if (params_.final_norm.bias != kNoParam) norm.dbias_C = store_.gradient(params_.final_norm.bias);
  norm.dy_TC = slot.dn_TC;
  norm.s_TC = slot.final_s_TC;
  norm.weight_C = lease.weight(params_.final_norm.weight);
  norm.mean_T = slot.final_mean_T;
  norm.rstd_T = slot.final_rstd_T;
  norm_backward(context_, norm);
}

void Stage::backward_embedding(int micro_batch) {
  const MicroBatch& batch = micro_batches_[static_cast<std::size_t>(micro_batch)];
  const ConstTensorView d = gradients_of_layer(micro_batch, -1).dy_TC;
  embedding_backward(context_, store_.gradient(params_.embedding), batch.input_ids, d);
  if (params_.position_embedding != kNoParam) {
    embedding_backward(context_, store_.gradient(params_.position_embedding), batch.positions, d);
  }
}

void Stage::ready(int block) const {
  if (gradients_ready_) gradients_ready_(block);
}

void Stage::backward(int, int micro_batch, Pass pass) {
  const MicroBatch& batch = micro_batches_[static_cast<std::size_t>(micro_batch)];
  const BlockPass block_pass = pass_of(batch);
  Slot& slot = slot_of(micro_batch);
  const bool last = pass == Pass::kLast;
  backward_head(micro_batch);
  if (last) ready(static_cast<int>(config_.layers) + 1);
  for (std::int64_t layer = config_.layers - 1; layer >= 0; --layer) {
    const BlockParams& params = params_.blocks[static_cast<std::size_t>(layer)];
    const BlockActivations& acts = acts_of(slot, static_cast<std::size_t>(layer));
    const BlockGradients& gradients = gradients_of_layer(micro_batch, layer);
    const ParamStore::Lease lease = store_.acquire(static_cast<int>(layer) + 1);
    block_backward_input(block_pass, weights_of(lease, params, config_), acts, gradients,
                         buffers_.backward, store_, params,
                         gradients_of_layer(micro_batch, layer - 1).dy_TC);
    block_backward_weight(block_pass, acts, gradients, store_, params, block_accumulate_);
    if (last) ready(static_cast<int>(layer) + 1);
  }
  block_accumulate_ = Accumulate::kYes;
  backward_embedding(micro_batch);
  if (!last) return;
  store_.add_tied_gradients(context_);
  ready(0);
}

void Stage::backward_input(int, int micro_batch) {
  expect(shape_.purpose == StagePurpose::kTrainingSplit, "B without W in a stage made for BW");
  const MicroBatch& batch = micro_batches_[static_cast<std::size_t>(micro_batch)];
  const BlockPass block_pass = pass_of(batch);
  Slot& slot = slot_of(micro_batch);
  backward_head(micro_batch);
  for (std::int64_t layer = config_.layers - 1; layer >= 0; --layer) {
    const BlockParams& params = params_.blocks[static_cast<std::size_t>(layer)];
    const ParamStore::Lease lease = store_.acquire(static_cast<int>(layer) + 1);
    block_backward_input(block_pass, weights_of(lease, params, config_),
                         acts_of(slot, static_cast<std::size_t>(layer)),
                         gradients_of_layer(micro_batch, layer), buffers_.backward, store_, params,
                         gradients_of_layer(micro_batch, layer - 1).dy_TC);
  }
}

void Stage::backward_weight(int, int micro_batch, Pass pass) {
  const MicroBatch& batch = micro_batches_[static_cast<std::size_t>(micro_batch)];
  const BlockPass block_pass = pass_of(batch);
  Slot& slot = slot_of(micro_batch);
  const bool last = pass == Pass::kLast;
  if (last) ready(static_cast<int>(config_.layers) + 1);
  for (std::int64_t layer = config_.layers - 1; layer >= 0; --layer) {
    block_backward_weight(block_pass, acts_of(slot, static_cast<std::size_t>(layer)),
                          gradients_of_layer(micro_batch, layer), store_,
                          params_.blocks[static_cast<std::size_t>(layer)], block_accumulate_);
    if (last) ready(static_cast<int>(layer) + 1);
  }
  block_accumulate_ = Accumulate::kYes;
  backward_embedding(micro_batch);
  if (!last) return;
  store_.add_tied_gradients(context_);
  ready(0);
}

}  // namespace trireme
