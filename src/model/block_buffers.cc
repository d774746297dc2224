#include <utility>

#include "model/block.h"

namespace trireme {

namespace {

std::int64_t qkv_columns(const ModelConfig& config) {
  return config.q_size() + 2 * config.kv_size();
}

std::int64_t up_columns(const ModelConfig& config) {
  return config.activation == Activation::kSwiGlu ? 2 * config.ffn : config.ffn;
}

ContextShape context_shape(const BlockShape& shape) {
  ContextShape context;
  context.sequences = shape.sequences;
  context.tokens = shape.tokens / shape.sequences;
  context.heads = shape.config.heads;
  context.kv_heads = shape.config.kv_heads;
  context.head_dim = shape.config.head_dim;
  context.compute = shape.compute;
  return context;
}

ContextAxis::Buffers lay_out_context(ArenaCursor& arena, const BlockShape& shape,
                                     ContextAxis::Direction direction) {
  return ContextAxis::lay_out(arena, context_shape(shape), shape.context_extent,
                              shape.context_method, direction);
}

}  // namespace

AttentionLayout attention_layout(const ModelConfig& config, std::int64_t sequences,
                                 std::int64_t tokens, bool deterministic) {
  AttentionLayout attention;
  attention.sequences = sequences;
  attention.tokens = tokens;
  attention.heads = config.heads;
  attention.kv_heads = config.kv_heads;
  attention.head_dim = config.head_dim;
  attention.v_stride = qkv_columns(config);
  attention.q_stride = attention.k_stride =
      config.qk_norm ? config.q_size() + config.kv_size() : attention.v_stride;
  attention.o_stride = attention.d_o_stride = config.q_size();
  attention.deterministic = deterministic;
  return attention;
}

BlockActivations lay_out_activations(ArenaCursor& arena, const BlockShape& shape, Keep which,
                                     BlockActivations acts) {
  const ModelConfig& config = shape.config;
  const bool full = shape.recompute == Recompute::kFull;
  const bool selective = shape.recompute == Recompute::kSelective;
  const auto take = [&](TensorView& x, bool recomputed, DType dtype, Shape size) {
    if (recomputed == (which == Keep::kShared)) x = arena.take(dtype, size);
  };
  const auto wide = [&](TensorView& x, bool recomputed, std::int64_t columns) {
    take(x, recomputed, shape.compute, {shape.tokens, columns});
  };
  const auto heads = [&](TensorView& x, std::int64_t count) {
    take(x, full, DType::kF32, {shape.tokens, count});
  };
  const auto residual = [&](TensorView& x, bool recomputed) {
    take(x, recomputed, shape.compute, {shape.residual_tokens, config.hidden});
  };
  const auto row = [&](TensorView& x) { take(x, full, DType::kF32, {shape.residual_tokens}); };
  const bool layer_norm = config.norm == NormKind::kLayer;
  residual(acts.s1_TC, false);
  if (layer_norm) row(acts.mean1_T);
  row(acts.rstd1_T);
  wide(acts.qkv_TX, full, qkv_columns(config));
  if (config.qk_norm) {
    wide(acts.qk_TX, full || selective, config.q_size() + config.kv_size());
    heads(acts.rstd_q_TH, config.heads);
    heads(acts.rstd_k_TH, config.kv_heads);
  }
  wide(acts.attended_TX, full, config.q_size());
  heads(acts.lse_TH, config.heads);
  residual(acts.s2_TC, full);
  if (layer_norm) row(acts.mean2_T);
  row(acts.rstd2_T);
  wide(acts.up_TU, full, up_columns(config));
  return acts;
}

BlockActivations with_recomputed(BlockActivations activations, const BlockActivations& recomputed) {
  using Member = TensorView BlockActivations::*;
  for (const Member x :
       {&BlockActivations::s1_TC, &BlockActivations::mean1_T, &BlockActivations::rstd1_T,
        &BlockActivations::qkv_TX, &BlockActivations::qk_TX, &BlockActivations::rstd_q_TH,
        &BlockActivations::rstd_k_TH, &BlockActivations::attended_TX, &BlockActivations::lse_TH,
        &BlockActivations::s2_TC, &BlockActivations::mean2_T, &BlockActivations::rstd2_T,
        &BlockActivations::up_TU}) {
    if ((recomputed.*x).given()) activations.*x = recomputed.*x;
  }
  return activations;
}

NormGradients lay_out_norm_gradients(ArenaCursor& arena, const ModelConfig& config,
                                     std::int64_t size) {
  NormGradients gradients;
  gradients.weight = arena.take(DType::kF32, {size});
  if (config.norm == NormKind::kLayer) gradients.bias = arena.take(DType::kF32, {size});
  return gradients;
}

BlockNormGradients lay_out_block_norm_gradients(ArenaCursor& arena, const ModelConfig& config) {
  BlockNormGradients gradients;
  gradients.attention = lay_out_norm_gradients(arena, config, config.hidden);
  gradients.mlp = lay_out_norm_gradients(arena, config, config.hidden);
  if (!config.qk_norm) return gradients;
  gradients.q.weight = arena.take(DType::kF32, {config.head_dim});
  gradients.k.weight = arena.take(DType::kF32, {config.head_dim});
  return gradients;
}

BlockGradients lay_out_gradients(ArenaCursor& arena, const BlockShape& shape, GradientPart part) {
  const ModelConfig& config = shape.config;
  const auto take = [&](TensorView& x, std::int64_t columns, bool exchanged) {
    if (part == GradientPart::kBoth || (part == GradientPart::kExchanged) == exchanged)
      x = arena.take(shape.compute, {shape.tokens, columns});
  };
  const bool all_tokens = shape.residual_tokens == shape.tokens;
  BlockGradients gradients;
  take(gradients.dup_TU, up_columns(config), true);
  take(gradients.ds2_TC, config.hidden, false);
  take(gradients.dqkv_TX, qkv_columns(config), true);
  take(gradients.act_TF, config.ffn, false);
  take(gradients.n2_TC, config.hidden, all_tokens);
  take(gradients.n1_TC, config.hidden, all_tokens);
  return gradients;
}

BlockGradients with_exchanged(BlockGradients gradients, const BlockGradients& exchanged) {
  const auto take = [](TensorView& to, TensorView from) {
    if (from.given()) to = from;
  };
  take(gradients.dup_TU, exchanged.dup_TU);
  take(gradients.dqkv_TX, exchanged.dqkv_TX);
  take(gradients.n2_TC, exchanged.n2_TC);
  take(gradients.n1_TC, exchanged.n1_TC);
  return gradients;
}

void exchange(BlockActivations& acts, BlockGradients& exchanged) {
  const auto trade = [](TensorView& activation, TensorView& left) {
    if (left.given()) std::swap(activation, left);
  };
  trade(acts.up_TU, exchanged.dup_TU);
  trade(acts.qkv_TX, exchanged.dqkv_TX);
  trade(acts.s2_TC, exchanged.n2_TC);
  trade(acts.s1_TC, exchanged.n1_TC);
}

BlockGradients exchanged_in(const BlockActivations& activations, const BlockGradients& exchanged) {
  BlockActivations acts = activations;
  BlockGradients found = exchanged;
  exchange(acts, found);
  return found;
}

BlockForwardScratch lay_out_forward_scratch(ArenaCursor& arena, const BlockShape& shape) {
  const auto wide = [&](std::int64_t columns) {
    return arena.take(shape.compute, {shape.tokens, columns});
  };
  BlockForwardScratch scratch;
  scratch.branch_TC = wide(shape.config.hidden);
  scratch.n_TC = wide(shape.config.hidden);
  scratch.act_TF = wide(shape.config.ffn);
  scratch.attention = lay_out_context(arena, shape, ContextAxis::Direction::kForward);
  return scratch;
}

BlockBackwardScratch lay_out_backward_scratch(ArenaCursor& arena, const BlockShape& shape) {
  BlockBackwardScratch scratch;
  scratch.dattended_TX = arena.take(shape.compute, {shape.tokens, shape.config.q_size()});
  scratch.delta_TH = arena.take(DType::kF32, {shape.tokens, shape.config.heads});
  if (shape.compute != DType::kF32)
    scratch.dqkv_f32_TX = arena.take(DType::kF32, {shape.tokens, qkv_columns(shape.config)});
  scratch.attention = lay_out_context(arena, shape, ContextAxis::Direction::kBackward);
  return scratch;
}

}  // namespace trireme
