#include "model/attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise/elementwise.h"
#include "kernels/projection_norm/projection_norm.h"
#include "kernels/rope/rope.h"

namespace trireme {

namespace {

/// q and k as attention reads them: rotated, beside the unrotated ones where needed.
QkvHeads<std::byte> attention_heads(const AttentionActivations& acts,
                                    const AttentionConfig& config) {
  if (config.latent) return split_heads(acts.latent.heads_TX, config);
  QkvHeads<std::byte> heads = split_heads(acts.in_TX, config);
  if (config.qk_norm != QkNorm::kNone) {
    heads.q = heads_of(acts.qk_TX, 0, config.heads, config.head_dim);
    heads.k = heads_of(acts.qk_TX, config.q_size(), config.kv_heads, config.head_dim);
  }
  return heads;
}

float attention_scale(const AttentionConfig& config) {
  if (config.score_scale > 0) return static_cast<float>(config.score_scale);
  return 1 / std::sqrt(static_cast<float>(config.head_dim));
}

AttentionDropout attention_dropout(const LayerPass& pass) {
  const double share = pass.config.attention_dropout;
  if (!pass.dropout.given() || share == 0) return {};
  return {share, pass.dropout.key_of(pass.index, DropoutPlace::kProbabilities),
          pass.dropout.numbers_T2, pass.dropout.tensor_rank * pass.config.attention.heads};
}

/// Tokens [first, first + count).
struct TokenRange {
  std::int64_t first, count;
};

HeadsView kv_heads_of(const TensorView& rows_TX, const ConstHeadsView& like) {
  return heads_of(rows_TX, 0, like.heads, like.head_dim);
}

/// Keys or values of a sequence, one after the other, from its pages; `seen` begins a page.
HeadsView in_order(Context& context, const HeadsView& ordered, const HeadsView& cached,
                   std::span<const std::int32_t> pages, const PositionRange& seen) {
  for (std::int64_t first = 0; first < seen.count; first += kAttentionPage) {
    const std::int64_t rows = std::min(kAttentionPage, seen.count - first);
    const std::int64_t page =
        pages[static_cast<std::size_t>((seen.first + first) / kAttentionPage)];
    copy_heads(context, ordered.rows(first, rows), cached.rows(page * kAttentionPage, rows));
  }
  return ordered.rows(0, seen.count);
}

/// What queries from `first` to `last` see, from the beginning of a page.
PositionRange seen_by(std::int64_t first, std::int64_t last, std::int64_t window) {
  if (window == 0) return {0, last + 1};
  const std::int64_t begin =
      std::max<std::int64_t>(0, first - window + 1) / kAttentionPage * kAttentionPage;
  return {begin, last + 1 - begin};
}

/// `args` has o, q, k and v of the pass's tokens; the cache gets k and v.
void attend_cached(const LayerPass& pass, const KvCache& cache, const ContextAxis::Buffers& buffers,
                   ConstTensorView sinks_H, AttentionForward args) {
  Context& context = pass.context;
  const CachedTokens& tokens = cache.tokens;
  const auto keep = [&](const TensorView& all, const ConstHeadsView& heads) {
    const HeadsView cached = kv_heads_of(all, heads);
    put_heads(context, cached, heads, tokens.row_T);
    return cached;
  };
  const HeadsView k = keep(cache.k, args.k), v = keep(cache.v, args.v);
  if (tokens.sequence_T.given()) {
    attention_cached(context, {args.o, args.q, k, v, tokens.pages_SP, tokens.sequence_T,
                               pass.positions, tokens.longest(), args.scale, args.mask.window,
                               sinks_H.given() ? args.lse_TH : TensorView()});
    if (sinks_H.given()) attention_sinks(context, args.o, args.lse_TH, sinks_H);
    return;
  }
  PositionRange seen{0, std::int64_t{tokens.positions.back()} + 1};
  if (tokens.positions.front() > 0) {
    seen = seen_by(tokens.positions.front(), tokens.positions.back(), args.mask.window);
    args.k = in_order(context, kv_heads_of(cache.ordered_k, k), k, tokens.pages, seen);
    args.v = in_order(context, kv_heads_of(cache.ordered_v, v), v, tokens.pages, seen);
  }
  args.mask.kv = {&seen, 1};
  pass.context_axis.forward(context, buffers, args, sinks_H);
}

/// The same of latents; what tokens see, each by itself, comes to acts.attended at once.
void attend_cached_latents(const LayerPass& pass, const AttentionWeights& weights,
                           const AttentionActivations& acts, const AttentionForwardScratch& scratch,
                           const KvCache& cache, AttentionForward args) {
  const CachedTokens& tokens = cache.tokens;
  latent_keep(pass, acts, cache);
  if (tokens.sequence_T.given())
    return latent_attend_rows(pass, weights, acts, scratch.latent, cache, args.scale);
  const PositionRange seen{0, std::int64_t{tokens.positions.back()} + 1};
  if (tokens.positions.front() > 0) {
    const HeadsView rows =
        in_order(pass.context, one_head(cache.ordered_k), one_head(cache.k), tokens.pages, seen);
    const KeysAndValues heads = latent_expand(pass, weights, *cache.latent, rows);
    args.k = heads.k;
    args.v = heads.v;
  }
  args.mask.kv = {&seen, 1};
  pass.context_axis.forward(pass.context, scratch.axis, args);
}

/// Which heads of latents a pass needs.
LatentHeads heads_for(const KvCache* cache) {
  if (cache == nullptr) return LatentHeads::kAll;
  if (cache->tokens.sequence_T.given()) return LatentHeads::kNone;
  return cache->tokens.positions.front() > 0 ? LatentHeads::kQueries : LatentHeads::kAll;
}

bool norms_projections(const LayerPass& pass) {
  return pass.config.attention.qk_norm == QkNorm::kProjection;
}

/// Of q (0) or k (1).
TensorView sums_of(const TensorView& sums_2T, int which) {
  return sums_2T.rows(which, 1).reshape({sums_2T.shape[1]});
}

/// This rank's part of the sums of squares of some tokens.
void add_up_squares(Context& context, const LayerPass& pass, const AttentionActivations& acts,
                    TokenRange tokens) {
  const QkvHeads<std::byte> raw = split_heads(acts.in_TX, pass.config.attention);
  const auto of = [&](int which, const HeadsView& heads) {
    const ConstHeadsView rows = heads.rows(tokens.first, tokens.count);
    head_dots(context, sums_of(acts.squares_2T, which).rows(tokens.first, tokens.count), rows,
              rows);
  };
  of(0, raw.q);
  of(1, raw.k);
}

/// Heads that several ranks hold are as often among the columns as in the sums.
std::int64_t columns_of(const LayerPass& pass, const ConstHeadsView& heads) {
  return heads.heads * heads.head_dim * pass.tensor.extent();
}

/// Normed q and k of some tokens, all heads together, from the sums of squares.
void norm_rows(Context& context, const LayerPass& pass, const AttentionWeights& weights,
               const AttentionActivations& acts, TokenRange tokens) {
  const QkvHeads<std::byte> raw = split_heads(acts.in_TX, pass.config.attention);
  const QkvHeads<std::byte> normed = attention_heads(acts, pass.config.attention);
  const auto norm = [&](int which, const HeadsView& out, const HeadsView& in,
                        const NormWeights& of) {
    ProjectionNormForward args;
    args.out = out.rows(tokens.first, tokens.count);
    args.in = in.rows(tokens.first, tokens.count);
    args.squares_T = sums_of(acts.squares_2T, which).rows(tokens.first, tokens.count);
    args.weight_X = of.weight;
    args.columns = columns_of(pass, in);
    args.eps = pass.config.norm.eps;
    projection_norm_forward(context, args);
  };
  norm(0, normed.q, raw.q, weights.q_norm);
  norm(1, normed.k, raw.k, weights.k_norm);
}

/// Rotated q and k of some tokens, with their norms' statistics.
void rotate_rows(Context& context, const LayerPass& pass, const AttentionWeights& weights,
                 const AttentionActivations& acts, TokenRange tokens) {
  if (!pass.config.attention.rope) return;
  const bool normed = norms_projections(pass);
  if (normed) norm_rows(context, pass, weights, acts, tokens);
  const QkvHeads<std::byte> heads = attention_heads(acts, pass.config.attention);
  const QkvHeads<std::byte> raw = normed ? heads : split_heads(acts.in_TX, pass.config.attention);
  const auto rows = [&](const auto& all) { return all.rows(tokens.first, tokens.count); };
  const auto rotate = [&](const HeadsView& out, const HeadsView& in, const ConstTensorView& table,
                          const NormWeights& norm, const TensorView& rstd_TH) {
    RopeForward args;
    args.out = rows(out);
    args.in = rows(in);
    args.positions_T = rows(pass.positions);
    args.cos_sin_PR = table;
    if (!normed) args.weight_D = norm.weight;
    if (rstd_TH.given()) args.rstd_TH = rows(rstd_TH);
    args.eps = pass.config.norm.eps;
    args.weight_offset = pass.config.norm.weight_offset;
    rope_forward(context, args);
  };
  rotate(heads.q, raw.q, pass.rope.q, weights.q_norm, acts.rstd_q_TH);
  rotate(heads.k, raw.k, pass.rope.k, weights.k_norm, acts.rstd_k_TH);
}

}  // namespace

AttentionWeights weights_of(const ParamStore::Lease& lease, const AttentionParams& params) {
  AttentionWeights weights{weights_of(lease, static_cast<const BranchParams&>(params)),
                           weights_of(lease, params.q_norm),
                           weights_of(lease, params.k_norm),
                           weights_of(lease, params.q_up),
                           weights_of(lease, params.kv_up),
                           {}};
  if (params.sinks != kNoParam) weights.sinks_H = lease.weight(params.sinks);
  return weights;
}

namespace {

ContextAxis::Buffers lay_out_context(ArenaCursor& arena, const LayerShape& shape,
                                     ContextAxis::Direction direction) {
  const AttentionConfig& config = shape.config.attention;
  const ContextShape context{shape.sequences, shape.tokens / shape.sequences,
                             config.heads,    config.kv_heads,
                             config.head_dim, config.value_dim(),
                             shape.compute};
  return ContextAxis::lay_out(arena, context, shape.context_extent, shape.context_method,
                              direction);
}

}  // namespace

AttentionForwardScratch lay_out_attention_forward(ArenaCursor& arena, const LayerShape& shape) {
  return {lay_out_latent_forward(arena, shape),
          lay_out_context(arena, shape, ContextAxis::Direction::kForward)};
}

AttentionScratch lay_out_attention_scratch(ArenaCursor& arena, const LayerShape& shape) {
  const AttentionConfig& config = shape.config.attention;
  AttentionScratch scratch;
  scratch.dattended_TX = arena.take(shape.wide(config.out_size()));
  scratch.delta_TH = arena.take(shape.statistic(config.heads));
  if (shape.compute != DType::kF32)
    scratch.dqkv_f32_TX = arena.take(shape.statistic(config.qkv_size()));
  if (config.qk_norm == QkNorm::kProjection) scratch.dots_2T = arena.take(shape.of_q_and_k());
  if (config.sinks) scratch.sink_terms_TH = arena.take(shape.statistic(config.heads));
  scratch.latent = lay_out_latent_backward(arena, shape);
  scratch.axis = lay_out_context(arena, shape, ContextAxis::Direction::kBackward);
  return scratch;
}

AttentionLayout attention_layout(const AttentionConfig& config, std::int64_t sequences,
                                 std::int64_t tokens, bool deterministic) {
  AttentionLayout attention;
  attention.sequences = sequences;
  attention.tokens = tokens;
  attention.heads = config.heads;
  attention.kv_heads = config.kv_heads;
  attention.head_dim = config.head_dim;
  attention.value_dim = config.value_dim();
  attention.v_stride = config.qkv_size();
  attention.q_stride = attention.k_stride =
      config.qk_norm != QkNorm::kNone ? config.q_size() + config.k_size() : attention.v_stride;
  attention.o_stride = attention.d_o_stride = config.out_size();
  attention.written_stride = config.qkv_size();
  attention.deterministic = deterministic;
  return attention;
}

namespace {

/// q, k and v as attention reads them, from n.
void project_heads(const LayerPass& pass, const AttentionWeights& weights,
                   const AttentionActivations& acts, const NormedRows& n) {
  const bool normed = norms_projections(pass), summed = normed && pass.tensor.extent() > 1;
  const auto rotate = [&](Context& of, std::int64_t first, std::int64_t count) {
    if (normed) add_up_squares(of, pass, acts, {first, count});
    if (!summed) rotate_rows(of, pass, weights, acts, {first, count});
  };
  LinearEpilogue rotated;
  rotated.then = rotate;
  column_parallel_forward(pass, acts.in_TX, n, weights.in, rotated);
  if (summed) {
    pass.tensor.sum(acts.squares_2T);
    rotate_rows(pass.context, pass, weights, acts, {0, acts.in_TX.shape[0]});
  }
}

/// Columns that the last product reads.
HeadsView values_of(const TensorView& x_TX, const AttentionConfig& config) {
  return heads_of(x_TX, 0, config.heads, config.value_dim());
}

}  // namespace

ProductInput attend_forward(const LayerPass& pass, const AttentionWeights& weights,
                            const AttentionActivations& acts,
                            const AttentionForwardScratch& scratch, const NormedRows& n,
                            const KvCache* cache) {
  const AttentionConfig& config = pass.config.attention;
  if (config.latent) {
    latent_forward(pass, weights, acts, scratch.latent, n.n_TC, heads_for(cache));
  } else {
    project_heads(pass, weights, acts, n);
  }
  const QkvHeads<std::byte> heads = attention_heads(acts, config);
  AttentionForward args;
  args.mask = pass.mask;
  args.mask.window = config.window;
  args.o = values_of(acts.attended_TX, config);
  args.lse_TH = acts.lse_TH;
  args.q = heads.q;
  args.k = heads.k;
  args.v = heads.v;
  args.scale = attention_scale(config);
  if (cache == nullptr) {
    args.quantized = {input_codes(pass, weights.out),
                      cleared_maxima(pass, weights.out, weights.out.x_amax_1)};
    args.dropout = attention_dropout(pass);
    pass.context_axis.forward(pass.context, scratch.axis, args, weights.sinks_H);
  } else if (config.latent) {
    attend_cached_latents(pass, weights, acts, scratch, *cache, args);
  } else {
    attend_cached(pass, *cache, scratch.axis, weights.sinks_H, args);
  }
  return {acts.attended_TX, args.quantized.codes};
}

void recompute_heads(const LayerPass& pass, const AttentionWeights& weights,
                     const AttentionActivations& acts, const AttentionForwardScratch& scratch) {
  const AttentionConfig& config = pass.config.attention;
  if (config.latent && config.latent->q_rank > 0)
    latent_heads_again(pass, weights, acts, scratch.latent);
  if (config.qk_norm != QkNorm::kNone)
    rotate_rows(pass.context, pass, weights, acts, {0, acts.in_TX.shape[0]});
}

namespace {

/// Where the gradient of sinks is added, with these.
AttentionSinks sinks_of(const AttentionBranchBackward& of, const AttentionWeights& weights,
                        const AttentionScratch& scratch) {
  if (!weights.sinks_H.given()) return {};
  const NormGradients sums =
      norm_gradients(of.pass.context, of.sink, {of.params.sinks}, of.left.sinks);
  return {sums.weight, scratch.sink_terms_TH, weights.sinks_H};
}

/// Whether RoPE's backward is the last op before the gradient of q, k and v is read.
bool rope_makes_gradient(const AttentionConfig& config) {
  return config.rope && !config.latent && config.qk_norm != QkNorm::kProjection;
}

/// To the gradient of the rotated heads, and where that stands: in sums that are not rounded yet if
/// RoPE's backward does that.
TensorView backward_to_heads(const AttentionBranchBackward& of, const AttentionWeights& weights,
                             const AttentionScratch& scratch) {
  const AttentionConfig& config = of.pass.config.attention;
  Context& context = of.pass.context;
  const bool rounded = scratch.dqkv_f32_TX.given();
  const TensorView& gradient_TX = config.latent ? scratch.latent.dheads_TX : of.left.din_TX;
  const TensorView sums_TX = rounded ? scratch.dqkv_f32_TX : gradient_TX;
  const QkvHeads<std::byte> sums = split_heads(sums_TX, config);
  const QkvHeads<std::byte> heads = attention_heads(of.acts, config);
  AttentionBackward args;
  args.dq = sums.q;
  args.dk = sums.k;
  args.dv = sums.v;
  args.d_o = values_of(scratch.dattended_TX, config);
  args.q = heads.q;
  args.k = heads.k;
  args.v = heads.v;
  args.lse_TH = of.acts.lse_TH;
  args.delta_TH = scratch.delta_TH;
  args.o = values_of(of.acts.attended_TX, config);
  args.mask = of.pass.mask;
  args.mask.window = config.window;
  args.scale = attention_scale(config);
  args.dropout = attention_dropout(of.pass);
  const AttentionSinks sinks = sinks_of(of, weights, scratch);
  if (rounded && of.pass.context_axis.rank().extent == 1) {
    const QkvHeads<std::byte> gradient = split_heads(gradient_TX, config);
    args.written = {gradient.q, gradient.k, gradient.v};
    const AttentionWrites writes = attention_backward_writes(context, args);
    if (writes != AttentionWrites::kNo) {
      if (writes == AttentionWrites::kFromDelta || sinks.given())
        attention_delta(context, scratch.delta_TH, args.d_o, args.o);
      if (sinks.given()) sinks.backward(context, args);
      attention_backward(context, args);
      return gradient_TX;
    }
    args.written = {};
  }
  attention_delta(context, scratch.delta_TH, args.d_o, args.o);
  clear(context, sums_TX);
  of.pass.context_axis.backward(context, scratch.axis, args, sinks);
  if (rope_makes_gradient(config)) return sums_TX;
  // Rounded where an op for bf16 heads would store it.
  if (rounded) cast(context, gradient_TX, sums_TX);
  return gradient_TX;
}

/// Of the gradient of rotated q and k with these: what a norm of all heads subtracts.
void add_up_dots(const AttentionBranchBackward& of, const AttentionScratch& scratch) {
  const QkvHeads<std::byte> gradient = split_heads(of.left.din_TX, of.pass.config.attention);
  const QkvHeads<std::byte> heads = attention_heads(of.acts, of.pass.config.attention);
  head_dots(of.pass.context, sums_of(scratch.dots_2T, 0), gradient.q, heads.q);
  head_dots(of.pass.context, sums_of(scratch.dots_2T, 1), gradient.k, heads.k);
  if (of.pass.tensor.extent() > 1) of.pass.tensor.sum(scratch.dots_2T);
}

/// The gradient of all heads together before their norm, from that behind it.
void norm_back(const AttentionBranchBackward& of, const AttentionWeights& weights,
               const AttentionScratch& scratch) {
  const QkvHeads<std::byte> gradient = split_heads(of.left.din_TX, of.pass.config.attention);
  const QkvHeads<std::byte> raw = split_heads(of.acts.in_TX, of.pass.config.attention);
  const auto norm = [&](int which, const HeadsView& d, const HeadsView& in,
                        const NormWeights& weight, const NormGradients& sums) {
    ProjectionNormBackward args;
    args.din = d;
    args.dout = d;
    args.in = in;
    args.squares_T = sums_of(of.acts.squares_2T, which);
    args.dots_T = sums_of(scratch.dots_2T, which);
    args.weight_X = weight.weight;
    args.dweight_X = sums.weight;
    args.columns = columns_of(of.pass, in);
    args.eps = of.pass.config.norm.eps;
    projection_norm_backward(of.pass.context, args);
  };
  norm(0, gradient.q, raw.q, weights.q_norm,
       norm_gradients(of.pass.context, of.sink, of.params.q_norm, of.left.q_norm));
  norm(1, gradient.k, raw.k, weights.k_norm,
       norm_gradients(of.pass.context, of.sink, of.params.k_norm, of.left.k_norm));
}

RopeBackward rotation_of(const HeadsView& din, const ConstHeadsView& dout, const ConstHeadsView& in,
                         const ConstTensorView& table) {
  RopeBackward args;
  args.din = din;
  args.dout = dout;
  args.in = in;
  args.cos_sin_PR = table;
  return args;
}

/// `turned_TX`: as backward_to_heads has left it. Of a projection's parts amax_P gets the largest
/// magnitudes, if it is given.
void rotate_back(const AttentionBranchBackward& of, const AttentionWeights& weights,
                 const AttentionScratch& scratch, const TensorView& turned_TX,
                 const TensorView& amax_P) {
  const AttentionConfig& config = of.pass.config.attention;
  const bool normed = norms_projections(of.pass);
  if (normed) add_up_dots(of, scratch);
  const QkvHeads<std::byte> gradient = split_heads(of.left.din_TX, config);
  const QkvHeads<std::byte> turned = split_heads(turned_TX, config);
  const QkvHeads<std::byte> raw = split_heads(of.acts.in_TX, config);
  const auto turn = [&](int part, RopeBackward args) {
    args.positions_T = of.pass.positions;
    if (amax_P.given()) args.amax_1 = amax_P.rows(part, 1);
    rope_backward(of.pass.context, args);
  };
  const auto rotate = [&](int part, RopeBackward args, const NormWeights& norm,
                          const TensorView& rstd_TH, const NormGradients& sums) {
    if (!normed) args.weight_D = norm.weight;
    args.rstd_TH = rstd_TH;
    args.dweight_D = sums.weight;
    args.weight_offset = of.pass.config.norm.weight_offset;
    turn(part, args);
  };
  const auto sums = [&](const NormParams& norm, const NormGradients& kept) {
    return normed ? NormGradients() : norm_gradients(of.pass.context, of.sink, norm, kept);
  };
  const auto& [q_table, k_table] = of.pass.rope;
  rotate(0, rotation_of(gradient.q, turned.q, raw.q, q_table), weights.q_norm, of.acts.rstd_q_TH,
         sums(of.params.q_norm, of.left.q_norm));
  rotate(1, rotation_of(gradient.k, turned.k, raw.k, k_table), weights.k_norm, of.acts.rstd_k_TH,
         sums(of.params.k_norm, of.left.k_norm));
  if (normed) return norm_back(of, weights, scratch);
  ConstTensorView no_dims = k_table;  // of v none rotates: it is rounded
  no_dims.shape = {k_table.shape[0], 0};
  if (amax_P.given() || turned.v.data != gradient.v.data)
    turn(2, rotation_of(gradient.v, turned.v, raw.v, no_dims));
}

/// The gradient of q, k and v in codes alone, where nothing but products of it follows.
BothOrders turned_codes(const AttentionBranchBackward& of, const TensorView& turned_TX) {
  const LinearGradients gradients = of.gradients_of_in();
  const bool quantises = of.pass.fp8 != nullptr && gradients.fp8 != nullptr;
  if (!quantises || !rope_leaves_codes(of.pass.config, of.pass.tensor.extent())) return {};
  const auto& [q_table, k_table] = of.pass.rope;
  const BothOrders codes = of.pass.fp8->gradient_codes(of.pass.tokens(), gradients);
  if (codes.given())
    rope_backward_codes(of.pass.context, {codes.along, codes.across, turned_TX, of.pass.positions,
                                          q_table, k_table, of.pass.config.attention.head_dim});
  return codes;
}

}  // namespace

BothOrders attend_backward(const AttentionBranchBackward& of, const AttentionWeights& weights,
                           const AttentionScratch& scratch, Pending dy, Halves halves) {
  of.out_input(scratch.dattended_TX, std::move(dy), weights, {},
               halves == Halves::kBoth ? of.acts.attended_TX : ConstTensorView());
  const AttentionConfig& config = of.pass.config.attention;
  const TensorView turned_TX = backward_to_heads(of, weights, scratch);
  if (config.latent) return {};
  if (halves == Halves::kBoth) {
    const BothOrders codes = turned_codes(of, turned_TX);
    if (codes.given()) return codes;
  }
  const TensorView amax_P = cleared_maxima(of.pass, weights.in, of.left.din_amax_P);
  const bool left = rope_makes_gradient(config);
  if (config.rope) rotate_back(of, weights, scratch, turned_TX, left ? amax_P : TensorView());
  if (!left && amax_P.given())
    absolute_max(of.pass.context, amax_P.reshape({1, amax_P.count()}), of.left.din_TX,
                 ScaleDim(of.left.din_TX.shape[0], 0), weights.in.fp8->out.with_block(0));
  return {};
}

}  // namespace trireme
