#include "model/decoder.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "kernels/embedding/embedding.h"
#include "kernels/gemm/gemm.h"
#include "model/rope_table.h"
#include "tensor/transfer.h"

namespace trireme {

Decoder::Decoder(Context& context, const ModelConfig& config, const ModelParams& params,
                 const ParamStore& store, std::int64_t capacity, std::int64_t chunk)
    : context_(context),
      config_(config),
      params_(params),
      store_(store),
      capacity_(capacity),
      chunk_(std::min(chunk, capacity)),
      logits_(DType::kF32, {1, config.vocab_size}, context.device()),
      positions_(DType::kI32, {capacity}, context.device()),
      ids_(DType::kI32, {chunk_}, context.device()),
      final_n_(store.compute(), {1, config.hidden}, context.device()),
      final_s_(store.compute(), {1, config.hidden}, context.device()),
      final_mean_(DType::kF32, {1}, context.device()),
      final_rstd_(DType::kF32, {1}, context.device()),
      host_logits_(static_cast<std::size_t>(config.vocab_size)) {
  if (config.position == PositionKind::kRope)
    rope_table_ = make_rope_table(context, config.rope, config.head_dim, capacity);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    k_.emplace_back(store.compute(), Shape{capacity, config.kv_size()}, context.device());
    v_.emplace_back(store.compute(), Shape{capacity, config.kv_size()}, context.device());
  }
  std::vector<std::int32_t> positions(static_cast<std::size_t>(capacity));
  std::iota(positions.begin(), positions.end(), 0);
  copy_in(context, positions_.view(), std::as_bytes(std::span(positions)));
}

std::span<const float> Decoder::feed(std::span<const std::int32_t> ids) {
  expect(!ids.empty() && length_ + static_cast<std::int64_t>(ids.size()) <= capacity_,
         "{} tokens fed to a decoder of {} that holds {}", ids.size(), capacity_, length_);
  while (!ids.empty()) {
    const auto count = std::min(ids.size(), static_cast<std::size_t>(chunk_));
    feed_chunk(ids.first(count));
    ids = ids.subspan(count);
  }
  copy_out(context_, std::as_writable_bytes(std::span(host_logits_)), logits_.view());
  return host_logits_;
}

void Decoder::feed_chunk(std::span<const std::int32_t> ids) {
  const auto tokens = static_cast<std::int64_t>(ids.size());
  // Laid out for just these tokens: two layers' activations in turns, and what layers share.
  struct Pass {
    std::array<BlockActivations, 2> acts;
    BlockForwardScratch scratch;
  };
  const auto lay_out = [&](ArenaCursor& arena) {
    BlockShape shape{config_};
    shape.tokens = shape.stream_tokens = tokens;
    shape.compute = store_.compute();
    return Pass{{lay_out_activations(arena, shape, Keep::kEachLayer),
                 lay_out_activations(arena, shape, Keep::kEachLayer)},
                lay_out_forward_scratch(arena, shape)};
  };
  ArenaCursor measure;
  lay_out(measure);
  const Memory memory(context_.device(), measure.bytes());
  ArenaCursor arena(memory.data());
  const auto [acts, scratch] = lay_out(arena);

  PositionRange range{length_, tokens};
  AttentionMask mask;
  mask.q = {&range, 1};
  const ConstTensorView positions = positions_.view().rows(length_, tokens);
  const BlockPass pass{context_,           config_,   tensor_, context_axis_,
                       rope_table_.view(), positions, mask};

  const ChunkParams& whole = params_.chunks.front();
  const ParamStore::Lease embedding_lease = store_.acquire(params_.block_of(whole.embedding));
  EmbeddingForward embedding;
  embedding.out_TC = acts[0].s1_TC;
  embedding.ids_T = ids_.view().rows(0, tokens);
  copy_in(context_, ids_.view().rows(0, tokens), std::as_bytes(ids));
  embedding.table_VC = embedding_lease.weight(whole.embedding);
  if (whole.position_embedding != kNoParam) {
    embedding.positions_T = positions;
    embedding.position_table_PC = embedding_lease.weight(whole.position_embedding);
  }
  embedding_forward(context_, embedding);
  ConstTensorView stream;
  for (std::size_t layer = 0; layer < whole.blocks.size(); ++layer) {
    const ParamStore::Lease lease = store_.acquire(static_cast<int>(layer) + 1);
    const KvCache cache{k_[layer].view(), v_[layer].view()};
    block_forward(pass, weights_of(lease, whole.blocks[layer], config_), acts[layer % 2], scratch,
                  stream, &cache);
    stream = acts[layer % 2].s2_TC;
  }
  length_ += tokens;

  const ParamStore::Lease lease = store_.acquire(params_.block_of(whole.final_norm.weight));
  const NormWeights weights = weights_of(lease, whole.final_norm);
  NormForward norm;
  norm.op = norm_op(config_);
  norm.eps = config_.norm_eps;
  norm.y_TC = final_n_.view();
  norm.sum_TC = final_s_.view();
  if (config_.norm == NormKind::kLayer) norm.mean_T = final_mean_.view();
  norm.rstd_T = final_rstd_.view();
  norm.x_TC = scratch.branch_TC.rows(tokens - 1, 1);
  norm.residual_TC = stream.rows(tokens - 1, 1);
  norm.weight_C = weights.weight;
  norm.bias_C = weights.bias;
  norm_forward(context_, norm);
  Gemm product;
  product.c_MN = logits_.view();
  product.a = final_n_.view();
  const ParamStore::Lease head = store_.acquire(params_.block_of(whole.head));
  product.b = head.weight(whole.head);
  product.transpose_b = Transpose::kYes;
  gemm(context_, product);
  context_.synchronize();  // before the memory goes
}

}  // namespace trireme
