#include "model/block.h"

#include <cmath>
#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "kernels/rope/rope.h"

namespace trireme {

namespace {

std::int64_t qkv_columns(const ModelConfig& config) {
  return config.q_size() + 2 * config.kv_size();
}

std::int64_t up_columns(const ModelConfig& config) {
  return config.activation == Activation::kSwiGlu ? 2 * config.ffn : config.ffn;
}

/// The q, k and v columns of a fused row.
template <class Byte>
struct QkvHeads {
  BasicHeadsView<Byte> q, k, v;
};
template <class Byte>
QkvHeads<Byte> split_heads(const BasicTensorView<Byte>& qkv_TX, const ModelConfig& config) {
  return {heads_of(qkv_TX, 0, config.heads, config.head_dim),
          heads_of(qkv_TX, config.q_size(), config.kv_heads, config.head_dim),
          heads_of(qkv_TX, config.q_size() + config.kv_size(), config.kv_heads, config.head_dim)};
}

/// q and k as attention reads them: rotated, beside the unrotated ones where those are still
/// needed.
QkvHeads<std::byte> attention_heads(const BlockActivations& acts, const ModelConfig& config) {
  QkvHeads<std::byte> heads = split_heads(acts.qkv_TX, config);
  if (config.qk_norm) {
    heads.q = heads_of(acts.qk_TX, 0, config.heads, config.head_dim);
    heads.k = heads_of(acts.qk_TX, config.q_size(), config.kv_heads, config.head_dim);
  }
  return heads;
}

float attention_scale(const ModelConfig& config) {
  return 1 / std::sqrt(static_cast<float>(config.head_dim));
}

void rotate(const BlockPass& pass, HeadsView out, ConstHeadsView in, const NormWeights& norm,
            TensorView rstd_TH) {
  RopeForward args;
  args.out = out;
  args.in = in;
  args.positions_T = pass.positions;
  args.cos_sin_PD = pass.cos_sin;
  args.weight_D = norm.weight;
  args.rstd_TH = rstd_TH;
  args.eps = pass.config.norm_eps;
  rope_forward(pass.context, args);
}

void rotate_back(const BlockPass& pass, HeadsView gradient, ConstHeadsView in,
                 const NormWeights& norm, ConstTensorView rstd_TH, TensorView dweight_D) {
  RopeBackward args;
  args.din = gradient;
  args.dout = gradient;
  args.in = in;
  args.positions_T = pass.positions;
  args.cos_sin_PD = pass.cos_sin;
  args.weight_D = norm.weight;
  args.rstd_TH = rstd_TH;
  args.dweight_D = dweight_D;
  rope_backward(pass.context, args);
}

/// Appends the tokens' keys and values to the cache and returns what attention then sees.
QkvHeads<std::byte> extend_cache(const BlockPass& pass, const QkvHeads<std::byte>& heads,
                                 const KvCache& cache) {
  const std::int64_t first = pass.mask.q.front().first, count = heads.k.tokens;
  const auto append = [&](const TensorView& all, const HeadsView& part) {
    const HeadsView cached =
        heads_of(all.rows(0, first + count), 0, pass.config.kv_heads, pass.config.head_dim);
    copy_heads(pass.context, cached.rows(first, count), part);
    return cached;
  };
  return {heads.q, append(cache.k, heads.k), append(cache.v, heads.v)};
}

/// Rotated q and k, with their norms' statistics.
void rotate_heads(const BlockPass& pass, const BlockWeights& weights,
                  const BlockActivations& acts) {
  if (pass.config.position != PositionKind::kRope) return;
  const QkvHeads<std::byte> heads = attention_heads(acts, pass.config);
  const QkvHeads<std::byte> raw = split_heads(acts.qkv_TX, pass.config);
  rotate(pass, heads.q, raw.q, weights.q_norm, acts.rstd_q_TH);
  rotate(pass, heads.k, raw.k, weights.k_norm, acts.rstd_k_TH);
}

}  // namespace

LibraryAttention library_attention_of(const ModelConfig& config, std::int64_t sequences,
                                      std::int64_t tokens, bool deterministic) {
  LibraryAttention attention;
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

namespace {

void attend(const BlockPass& pass, const BlockWeights& weights, const BlockActivations& acts,
            const BlockForwardScratch& scratch, const KvCache* cache) {
  const ModelConfig& config = pass.config;
  rotate_heads(pass, weights, acts);
  QkvHeads<std::byte> heads = attention_heads(acts, config);
  AttentionForward args;
  args.mask = pass.mask;
  PositionRange cached{0, 0};
  if (cache != nullptr) {
    heads = extend_cache(pass, heads, *cache);
    cached.count = heads.k.tokens;
    args.mask.kv = {&cached, 1};
  }
  args.o = heads_of(acts.attended_TX, 0, config.heads, config.head_dim);
  args.lse_TH = acts.lse_TH;
  args.q = heads.q;
  args.k = heads.k;
  args.v = heads.v;
  args.scale = attention_scale(config);
  pass.context_axis.forward(pass.context, scratch.attention, args);
}

/// y = x W + b where each place of the tensor axis has a part of x's columns: parts of the sum, b
/// in the first. Then to the stream.
void product_to_stream(const BlockPass& pass, TensorView y_TC, ConstTensorView x,
                       LinearWeights weights) {
  if (!pass.tensor.first()) weights.bias = {};
  linear_forward(pass.context, y_TC, x, weights);
  pass.tensor.to_stream(y_TC);
}

}  // namespace

NormWeights weights_of(const ParamStore::Lease& lease, const NormParams& params) {
  NormWeights weights;
  if (params.weight != kNoParam) weights.weight = lease.weight(params.weight);
  if (params.bias != kNoParam) weights.bias = lease.weight(params.bias);
  return weights;
}

BlockWeights weights_of(const ParamStore::Lease& lease, const BlockParams& params,
                        const ModelConfig& config) {
  return {weights_of(lease, params.attention_norm), weights_of(lease, params.mlp_norm),
          weights_of(lease, params.q_norm),         weights_of(lease, params.k_norm),
          weights_of(lease, params.qkv, config),    weights_of(lease, params.out, config),
          weights_of(lease, params.up, config),     weights_of(lease, params.down, config)};
}

namespace {

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
                                     ContextAxis::Pass pass) {
  return ContextAxis::lay_out(arena, context_shape(shape), shape.context_extent,
                              shape.context_method, pass);
}

}  // namespace

BlockActivations lay_out_activations(ArenaCursor& arena, const BlockShape& shape, Keep which,
                                     BlockActivations acts) {
  const ModelConfig& config = shape.config;
  const bool full = shape.recompute == Recompute::kFull;
  const bool selective = shape.recompute == Recompute::kSelective;
  const auto take = [&](TensorView& x, bool made_again, DType dtype, Shape size) {
    if (made_again == (which == Keep::kShared)) x = arena.take(dtype, size);
  };
  const auto inside = [&](TensorView& x, bool made_again, std::int64_t columns) {
    take(x, made_again, shape.compute, {shape.tokens, columns});
  };
  const auto heads = [&](TensorView& x, std::int64_t count) {
    take(x, full, DType::kF32, {shape.tokens, count});
  };
  const auto stream = [&](TensorView& x, bool made_again) {
    take(x, made_again, shape.compute, {shape.stream_tokens, config.hidden});
  };
  const auto row = [&](TensorView& x) { take(x, full, DType::kF32, {shape.stream_tokens}); };
  const bool layer_norm = config.norm == NormKind::kLayer;
  stream(acts.s1_TC, false);
  if (layer_norm) row(acts.mean1_T);
  row(acts.rstd1_T);
  inside(acts.qkv_TX, full, qkv_columns(config));
  if (config.qk_norm) {
    inside(acts.qk_TX, full || selective, config.q_size() + config.kv_size());
    heads(acts.rstd_q_TH, config.heads);
    heads(acts.rstd_k_TH, config.kv_heads);
  }
  inside(acts.attended_TX, full, config.q_size());
  heads(acts.lse_TH, config.heads);
  stream(acts.s2_TC, full);
  if (layer_norm) row(acts.mean2_T);
  row(acts.rstd2_T);
  inside(acts.up_TU, full, up_columns(config));
  return acts;
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

NormGradients norm_gradients(Context& context, const ParamStore& store, const NormParams& params,
                             const NormGradients& kept) {
  if (kept.weight.given()) {
    clear(context, kept.weight);
    if (kept.bias.given()) clear(context, kept.bias);
    return kept;
  }
  NormGradients gradients;
  if (params.weight != kNoParam) gradients.weight = store.gradient(params.weight);
  if (params.bias != kNoParam) gradients.bias = store.gradient(params.bias);
  return gradients;
}

BlockGradients lay_out_gradients(ArenaCursor& arena, const BlockShape& shape, GradientPart part) {
  const ModelConfig& config = shape.config;
  const auto take = [&](TensorView& x, std::int64_t columns, bool exchanged) {
    if (part == GradientPart::kBoth || (part == GradientPart::kExchanged) == exchanged)
      x = arena.take(shape.compute, {shape.tokens, columns});
  };
  const bool all_tokens = shape.stream_tokens == shape.tokens;
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
  scratch.attention = lay_out_context(arena, shape, ContextAxis::Pass::kForward);
  return scratch;
}

BlockBackwardScratch lay_out_backward_scratch(ArenaCursor& arena, const BlockShape& shape) {
  BlockBackwardScratch scratch;
  scratch.dattended_TX = arena.take(shape.compute, {shape.tokens, shape.config.q_size()});
  scratch.delta_TH = arena.take(DType::kF32, {shape.tokens, shape.config.heads});
  if (shape.compute != DType::kF32)
    scratch.dqkv_f32_TX = arena.take(DType::kF32, {shape.tokens, qkv_columns(shape.config)});
  scratch.attention = lay_out_context(arena, shape, ContextAxis::Pass::kBackward);
  return scratch;
}

namespace {

/// Everything up to the MLP's activation h, in scratch.act.
void forward_to_activation(const BlockPass& pass, const BlockWeights& weights,
                           const BlockActivations& acts, const BlockForwardScratch& scratch,
                           ConstTensorView stream_TC, const KvCache* cache) {
  Context& context = pass.context;
  const TensorView n_SC = pass.tensor.stream_rows(scratch.n_TC);
  const TensorView branch_SC = pass.tensor.stream_rows(scratch.branch_TC);
  NormForward norm;
  norm.op = norm_op(pass.config);
  norm.eps = pass.config.norm_eps;
  norm.y_TC = n_SC;
  norm.mean_T = acts.mean1_T;
  norm.rstd_T = acts.rstd1_T;
  norm.weight_C = weights.attention_norm.weight;
  norm.bias_C = weights.attention_norm.bias;
  norm.x_TC = acts.s1_TC;
  if (stream_TC.given()) {
    norm.x_TC = branch_SC;
    norm.residual_TC = stream_TC;
    norm.sum_TC = acts.s1_TC;
  }
  norm_forward(context, norm);
  pass.tensor.to_inside(scratch.n_TC);
  linear_forward(context, acts.qkv_TX, scratch.n_TC, weights.qkv);
  attend(pass, weights, acts, scratch, cache);
  product_to_stream(pass, scratch.branch_TC, acts.attended_TX, weights.out);

  norm.y_TC = n_SC;
  norm.mean_T = acts.mean2_T;
  norm.rstd_T = acts.rstd2_T;
  norm.weight_C = weights.mlp_norm.weight;
  norm.bias_C = weights.mlp_norm.bias;
  norm.x_TC = branch_SC;
  norm.residual_TC = acts.s1_TC;
  norm.sum_TC = acts.s2_TC;
  norm_forward(context, norm);
  pass.tensor.to_inside(scratch.n_TC);
  const bool swiglu = pass.config.activation == Activation::kSwiGlu;
  linear_forward(context, scratch.act_TF, scratch.n_TC, weights.up,
                 {swiglu ? GemmEpilogue::kSwiglu : GemmEpilogue::kGelu, {}, acts.up_TU});
}

}  // namespace

void block_forward(const BlockPass& pass, const BlockWeights& weights, const BlockActivations& acts,
                   const BlockForwardScratch& scratch, ConstTensorView stream_TC,
                   const KvCache* cache) {
  forward_to_activation(pass, weights, acts, scratch, stream_TC, cache);
  product_to_stream(pass, scratch.branch_TC, scratch.act_TF, weights.down);
}

void block_recompute(const BlockPass& pass, const BlockWeights& weights,
                     const BlockActivations& acts, const BlockForwardScratch& scratch,
                     Recompute recompute) {
  if (recompute == Recompute::kFull)
    forward_to_activation(pass, weights, acts, scratch, {}, nullptr);
  if (recompute == Recompute::kSelective && pass.config.qk_norm) rotate_heads(pass, weights, acts);
}

namespace {

void attend_backward(const BlockPass& pass, const BlockWeights& weights,
                     const BlockActivations& acts, const BlockGradients& gradients,
                     const BlockBackwardScratch& scratch, const ParamStore& store,
                     const BlockParams& params) {
  const ModelConfig& config = pass.config;
  Context& context = pass.context;
  const ConstHeadsView d_o = heads_of(scratch.dattended_TX, 0, config.heads, config.head_dim);
  attention_delta(context, scratch.delta_TH, d_o,
                  heads_of(acts.attended_TX, 0, config.heads, config.head_dim));

  const bool rounded = scratch.dqkv_f32_TX.given();
  const TensorView sums_TX = rounded ? scratch.dqkv_f32_TX : gradients.dqkv_TX;
  clear(context, sums_TX);
  const QkvHeads<std::byte> sums = split_heads(sums_TX, config);
  const QkvHeads<std::byte> heads = attention_heads(acts, config);
  AttentionBackward args;
  args.dq = sums.q;
  args.dk = sums.k;
  args.dv = sums.v;
  args.d_o = d_o;
  args.q = heads.q;
  args.k = heads.k;
  args.v = heads.v;
  args.lse_TH = acts.lse_TH;
  args.delta_TH = scratch.delta_TH;
  args.o = heads_of(acts.attended_TX, 0, config.heads, config.head_dim);
  args.mask = pass.mask;
  args.scale = attention_scale(config);
  pass.context_axis.backward(context, scratch.attention, args);
  // The gradient of the rotated heads is rounded where an op for bf16 heads would store it.
  if (rounded) cast(context, gradients.dqkv_TX, sums_TX);

  if (config.position == PositionKind::kRope) {
    const QkvHeads<std::byte> gradient = split_heads(gradients.dqkv_TX, config);
    const QkvHeads<std::byte> raw = split_heads(acts.qkv_TX, config);
    const auto dweight = [&](const NormParams& norm, const NormGradients& kept) {
      return norm_gradients(context, store, norm, kept).weight;
    };
    rotate_back(pass, gradient.q, raw.q, weights.q_norm, acts.rstd_q_TH,
                dweight(params.q_norm, gradients.norms.q));
    rotate_back(pass, gradient.k, raw.k, weights.k_norm, acts.rstd_k_TH,
                dweight(params.k_norm, gradients.norms.k));
  }
}

}  // namespace

void block_backward_input(const BlockPass& pass, const BlockWeights& weights,
                          const BlockActivations& acts, const BlockGradients& gradients,
                          const BlockBackwardScratch& scratch, const ParamStore& store,
                          const BlockParams& params, TensorView ds1_TC) {
  Context& context = pass.context;
  const auto take_gradients = [&](NormBackward& args, const NormParams& of,
                                  const NormGradients& kept) {
    const NormGradients sums = norm_gradients(context, store, of, kept);
    args.dweight_C = sums.weight;
    args.dbias_C = sums.bias;
  };

  const TensorAxis& tensor = pass.tensor;
  const TensorView ds2_SC = tensor.stream_rows(gradients.ds2_TC);
  const TensorView n2_SC = tensor.stream_rows(gradients.n2_TC);
  const TensorView n1_SC = tensor.stream_rows(gradients.n1_TC);
  const bool swiglu = pass.config.activation == Activation::kSwiGlu;
  tensor.to_inside(gradients.dy_TC);
  linear_backward_input(context, gradients.dup_TU, gradients.dy_TC, weights.down,
                        {swiglu ? GemmEpilogue::kSwigluBackward : GemmEpilogue::kGeluBackward,
                         acts.up_TU, gradients.act_TF});
  linear_backward_input(context, gradients.n2_TC, gradients.dup_TU, weights.up);
  tensor.to_stream(gradients.n2_TC);
  NormBackward norm;
  norm.op = norm_op(pass.config);
  norm.dx_TC = ds2_SC;
  norm.y_TC = n2_SC;
  take_gradients(norm, params.mlp_norm, gradients.norms.mlp);
  norm.dy_TC = n2_SC;
  norm.dresidual_TC = tensor.stream_rows(gradients.dy_TC);
  norm.s_TC = acts.s2_TC;
  norm.weight_C = weights.mlp_norm.weight;
  norm.bias_C = weights.mlp_norm.bias;
  norm.mean_T = acts.mean2_T;
  norm.rstd_T = acts.rstd2_T;
  norm_backward(context, norm);

  tensor.to_inside(gradients.ds2_TC);
  linear_backward_input(context, scratch.dattended_TX, gradients.ds2_TC, weights.out);
  attend_backward(pass, weights, acts, gradients, scratch, store, params);
  linear_backward_input(context, gradients.n1_TC, gradients.dqkv_TX, weights.qkv);
  tensor.to_stream(gradients.n1_TC);
  norm.dx_TC = tensor.stream_rows(ds1_TC);
  norm.y_TC = n1_SC;
  take_gradients(norm, params.attention_norm, gradients.norms.attention);
  norm.dy_TC = n1_SC;
  norm.dresidual_TC = ds2_SC;
  norm.s_TC = acts.s1_TC;
  norm.weight_C = weights.attention_norm.weight;
  norm.bias_C = weights.attention_norm.bias;
  norm.mean_T = acts.mean1_T;
  norm.rstd_T = acts.rstd1_T;
  norm_backward(context, norm);
}

void block_backward_weight(const BlockPass& pass, const BlockActivations& acts,
                           const BlockGradients& gradients, const ParamStore& store,
                           const BlockParams& params, Accumulate accumulate) {
  const auto add = [&](const LinearParams& linear, ConstTensorView dy, ConstTensorView x) {
    linear_backward_weight(pass.context, gradients_of(store, linear, pass.config), dy, x,
                           accumulate);
  };
  const auto add_kept = [&](const NormParams& norm, const NormGradients& kept) {
    if (kept.weight.given())
      trireme::accumulate(pass.context, store.gradient(norm.weight), kept.weight);
    if (kept.bias.given()) trireme::accumulate(pass.context, store.gradient(norm.bias), kept.bias);
  };
  add_kept(params.attention_norm, gradients.norms.attention);
  add_kept(params.mlp_norm, gradients.norms.mlp);
  add_kept(params.q_norm, gradients.norms.q);
  add_kept(params.k_norm, gradients.norms.k);
  add(params.down, gradients.dy_TC, gradients.act_TF);
  pass.tensor.to_inside(gradients.n2_TC);
  add(params.up, gradients.dup_TU, gradients.n2_TC);
  add(params.out, gradients.ds2_TC, acts.attended_TX);
  pass.tensor.to_inside(gradients.n1_TC);
  add(params.qkv, gradients.dqkv_TX, gradients.n1_TC);
}

}  // namespace trireme
