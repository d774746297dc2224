#include "model/latent_attention.h"

#include "kernels/elementwise/elementwise.h"
#include "kernels/latent_heads/latent_heads.h"
#include "kernels/projection_norm/projection_norm.h"
#include "model/attention.h"

namespace trireme {

namespace {

const LatentConfig& latent_of(const LayerPass& pass) { return *pass.config.attention.latent; }

LatentDims dims_of(const LatentConfig& latent) {
  return {latent.nope_dim, latent.rope_dim, latent.value_dim};
}

LatentRope rope_of(const LayerPass& pass, const ConstTensorView& table) {
  return {pass.positions, table, latent_of(pass).interleaved};
}

/// The latents in a row of the first product: of q, and of keys and values.
enum class Which : std::uint8_t { kQ, kKv };
HeadsView latent_in(const TensorView& in_SX, const LatentConfig& latent, Which which) {
  return which == Which::kQ ? one_head(in_SX, 0, latent.q_rank)
                            : one_head(in_SX, latent.q_rank, latent.kv_rank);
}
/// Behind them: the keys' dims that rotate.
HeadsView rope_in(const TensorView& in_SX, const LatentConfig& latent) {
  return one_head(in_SX, latent.q_rank + latent.kv_rank, latent.rope_dim);
}
TensorView statistic(const TensorView& all_2S, Which which) {
  return all_2S.rows(static_cast<std::int64_t>(which), 1).reshape({all_2S.shape[1]});
}
HeadsView home(const LayerPass& pass, const TensorView& x_TX) {
  return one_head(pass.tensor.residual_rows(x_TX));
}

/// From what the first product has made to latents and r, in the residual rows.
void norm_latents(const LayerPass& pass, const AttentionWeights& weights,
                  const AttentionActivations& acts) {
  const LatentConfig& latent = latent_of(pass);
  const auto norm = [&](Which which, const TensorView& out_TX, const NormWeights& of) {
    const HeadsView in = latent_in(acts.in_TX, latent, which);
    const TensorView squares = statistic(acts.squares_2T, which);
    head_dots(pass.context, squares, in, in);
    projection_norm_forward(
        pass.context, {home(pass, out_TX), in, squares, of.weight, in.head_dim, latent.norm_eps});
  };
  if (latent.q_rank > 0) norm(Which::kQ, acts.latent.q_TX, weights.q_norm);
  norm(Which::kKv, acts.latent.kv_TX, weights.k_norm);
  copy_heads(pass.context, home(pass, acts.latent.rope_TR), rope_in(acts.in_TX, latent));
}

/// Gradients of the second products' results.
struct UpGradients {
  TensorView q_TX, kv_TX;
};
UpGradients up_gradients(const LayerPass& pass, const LatentGradients& left) {
  const std::int64_t tokens = pass.tokens(), heads = pass.config.attention.heads;
  UpGradients of{left.up_TX, left.up_TX};
  of.q_TX.shape = {tokens, heads * latent_of(pass).query_dim()};
  of.kv_TX.shape = {tokens, heads * latent_of(pass).key_value_dim()};
  of.kv_TX.data += of.q_TX.bytes();
  return of;
}

void make_queries(const LayerPass& pass, const AttentionActivations& acts,
                  const LatentForwardScratch& scratch) {
  latent_queries(pass.context,
                 {split_heads(acts.latent.heads_TX, pass.config.attention).q, scratch.q_TX,
                  dims_of(latent_of(pass)), rope_of(pass, pass.rope.q)});
}

void make_keys(const LayerPass& pass, const AttentionActivations& acts,
               const LatentForwardScratch& scratch) {
  const QkvHeads<std::byte> heads = split_heads(acts.latent.heads_TX, pass.config.attention);
  latent_keys(pass.context, {heads.k, heads.v, scratch.kv_TX, one_head(acts.latent.rope_TR),
                             dims_of(latent_of(pass)), rope_of(pass, pass.rope.k)});
}

}  // namespace

LatentForwardScratch lay_out_latent_forward(ArenaCursor& arena, const LayerShape& shape) {
  const AttentionConfig& config = shape.config.attention;
  LatentForwardScratch scratch;
  if (!config.latent) return scratch;
  scratch.q_TX = arena.take(shape.wide(config.heads * config.latent->query_dim()));
  scratch.kv_TX = arena.take(shape.wide(config.heads * config.latent->key_value_dim()));
  return scratch;
}

LatentBackwardScratch lay_out_latent_backward(ArenaCursor& arena, const LayerShape& shape) {
  const AttentionConfig& config = shape.config.attention;
  LatentBackwardScratch scratch;
  if (!config.latent) return scratch;
  scratch.dheads_TX = arena.take(shape.wide(config.qkv_size()));
  if (config.latent->q_rank > 0) scratch.dq_TX = arena.take(shape.wide(config.latent->q_rank));
  scratch.dkv_TX = arena.take(shape.wide(config.latent->kv_rank));
  scratch.drope_TR = arena.take(shape.wide(config.latent->rope_dim));
  scratch.dots_2S = arena.take({DType::kF32, {2, shape.residual_tokens}});
  return scratch;
}

LatentDecoding lay_out_latent_sequence(ArenaCursor& arena, const ModelConfig& local,
                                       std::int64_t length, DType compute) {
  const AttentionConfig& config = local.layer(0).attention;
  LatentDecoding decoding;
  if (!config.latent) return decoding;
  const auto take = [&](std::int64_t columns) { return arena.take({compute, {length, columns}}); };
  decoding.latents_LX = take(config.latent->kv_rank);
  decoding.kv_LX = take(config.heads * config.latent->key_value_dim());
  decoding.heads_LX = take(config.kv_size());
  return decoding;
}

LatentDecoding lay_out_latent_rows(ArenaCursor& arena, const LayerShape& shape,
                                   LatentDecoding decoding) {
  const AttentionConfig& config = shape.config.attention;
  if (!config.latent) return decoding;
  const std::int64_t row = config.latent->cached_size();
  decoding.row_TX = arena.take(shape.wide(row));
  decoding.query_TX = arena.take(shape.wide(config.heads * row));
  decoding.sum_TX = arena.take(shape.wide(config.heads * config.latent->kv_rank));
  return decoding;
}

void latent_forward(const LayerPass& pass, const AttentionWeights& weights,
                    const AttentionActivations& acts, const LatentForwardScratch& scratch,
                    TensorView n_TC, LatentHeads which) {
  pass.on_residual_rows().linear_forward(acts.in_TX, pass.tensor.residual_rows(n_TC), weights.in);
  norm_latents(pass, weights, acts);
  Pending rope = pass.tensor.start_all_gather(acts.latent.rope_TR);
  // W reads all rows of what these read.
  column_parallel_forward_and_keep(
      pass, scratch.q_TX, latent_of(pass).q_rank > 0 ? acts.latent.q_TX : n_TC, weights.q_up);
  if (which != LatentHeads::kNone) make_queries(pass, acts, scratch);
  if (which == LatentHeads::kAll)
    column_parallel_forward_and_keep(pass, scratch.kv_TX, acts.latent.kv_TX, weights.kv_up);
  rope.wait();
  if (which == LatentHeads::kAll) make_keys(pass, acts, scratch);
}

void latent_heads_again(const LayerPass& pass, const AttentionWeights& weights,
                        const AttentionActivations& acts, const LatentForwardScratch& scratch) {
  pass.linear_forward(scratch.q_TX, acts.latent.q_TX, weights.q_up);
  pass.linear_forward(scratch.kv_TX, acts.latent.kv_TX, weights.kv_up);
  make_queries(pass, acts, scratch);
  make_keys(pass, acts, scratch);
}

void latent_keep(const LayerPass& pass, const AttentionActivations& acts, const KvCache& cache) {
  const HeadsView row = one_head(cache.latent->row_TX);
  latent_row(pass.context,
             {row, acts.latent.kv_TX, one_head(acts.latent.rope_TR), rope_of(pass, pass.rope.k)});
  put_heads(pass.context, one_head(cache.k), row, cache.tokens.row_T);
}

KeysAndValues latent_expand(const LayerPass& pass, const AttentionWeights& weights,
                            const LatentDecoding& room, const HeadsView& rows) {
  const AttentionConfig& config = pass.config.attention;
  const LatentConfig& latent = latent_of(pass);
  HeadsView compressed = rows, rotated = rows;
  compressed.head_dim = latent.kv_rank;
  rotated.data += static_cast<std::size_t>(latent.kv_rank) * size_of(rows.dtype);
  rotated.head_dim = latent.rope_dim;
  const auto first = [&](const TensorView& all) { return all.rows(0, rows.tokens); };
  const TensorView latents = first(room.latents_LX), kv = first(room.kv_LX);
  copy_heads(pass.context, one_head(latents), compressed);
  pass.linear_forward(kv, latents, weights.kv_up);
  const TensorView heads = first(room.heads_LX);
  const HeadsView k = heads_of(heads, 0, config.heads, config.head_dim),
                  v = heads_of(heads, config.k_size(), config.heads, config.value_dim());
  latent_keys(pass.context, {k, v, kv, rotated, dims_of(latent), {}});
  return {k, v};
}

void latent_attend_rows(const LayerPass& pass, const AttentionWeights& weights,
                        const AttentionActivations& acts, const LatentForwardScratch& scratch,
                        const KvCache& cache, float scale) {
  const AttentionConfig& config = pass.config.attention;
  const LatentConfig& latent = latent_of(pass);
  const LatentDims dims = dims_of(latent);
  const CachedTokens& tokens = cache.tokens;
  const auto heads = [&](const TensorView& x_TX, std::int64_t size) {
    return heads_of(x_TX, 0, config.heads, size);
  };
  const HeadsView query = heads(cache.latent->query_TX, latent.cached_size()),
                  sum = heads(cache.latent->sum_TX, latent.kv_rank);
  const ConstTensorView up = widen(pass.context, weights.kv_up, pass.widened).weight;
  latent_absorbed_queries(pass.context,
                          {query, scratch.q_TX, up, dims, rope_of(pass, pass.rope.q)});
  attention_cached(pass.context,
                   {sum, query, one_head(cache.k), one_head(cache.k, 0, latent.kv_rank),
                    tokens.pages_SP, tokens.sequence_T, pass.positions, tokens.longest(), scale});
  latent_absorbed_values(pass.context, {heads(acts.attended_TX, latent.value_dim), sum, up, dims});
}

namespace {

/// From the gradient of the heads to those of the latents and of r: parts, of this rank's heads.
void heads_back(const AttentionBranchBackward& of, const AttentionWeights& weights,
                const LatentBackwardScratch& scratch) {
  const LayerPass& pass = of.pass;
  const LatentDims dims = dims_of(latent_of(pass));
  const QkvHeads<std::byte> gradient = split_heads(scratch.dheads_TX, pass.config.attention);
  const UpGradients up = up_gradients(pass, of.left.latent);
  latent_keys_backward(pass.context, {up.kv_TX, one_head(scratch.drope_TR), gradient.k, gradient.v,
                                      dims, rope_of(pass, pass.rope.k)});
  latent_queries_backward(pass.context, {up.q_TX, gradient.q, dims, rope_of(pass, pass.rope.q)});
  const bool has_rank = latent_of(pass).q_rank > 0;
  pass.linear_backward_input(scratch.dkv_TX, up.kv_TX, weights.kv_up);
  pass.linear_backward_input(has_rank ? scratch.dq_TX : of.left.n_TC, up.q_TX, weights.q_up);
}

/// From the gradients of the latents and of r to that of the first product, in the residual rows.
void norms_back(const AttentionBranchBackward& of, const AttentionWeights& weights,
                const LatentBackwardScratch& scratch) {
  const LayerPass& pass = of.pass;
  const LatentConfig& latent = latent_of(pass);
  const auto norm = [&](Which which, const TensorView& dout_TX, const TensorView& out_TX,
                        const NormWeights& weight, const NormGradients& sums) {
    const HeadsView dout = home(pass, dout_TX);
    ProjectionNormBackward args;
    args.din = latent_in(of.left.din_TX, latent, which);
    args.dout = dout;
    args.in = latent_in(of.acts.in_TX, latent, which);
    args.squares_T = statistic(of.acts.squares_2T, which);
    args.dots_T = statistic(scratch.dots_2S, which);
    args.weight_X = weight.weight;
    args.dweight_X = sums.weight;
    args.columns = dout.head_dim;
    args.eps = latent.norm_eps;
    head_dots(pass.context, statistic(scratch.dots_2S, which), dout, home(pass, out_TX));
    projection_norm_backward(pass.context, args);
  };
  const auto sums = [&](const NormParams& params, const NormGradients& kept) {
    return norm_gradients(pass.context, of.sink, params, kept);
  };
  if (latent.q_rank > 0)
    norm(Which::kQ, scratch.dq_TX, of.acts.latent.q_TX, weights.q_norm,
         sums(of.params.q_norm, of.left.q_norm));
  norm(Which::kKv, scratch.dkv_TX, of.acts.latent.kv_TX, weights.k_norm,
       sums(of.params.k_norm, of.left.k_norm));
  copy_heads(pass.context, rope_in(of.left.din_TX, latent), home(pass, scratch.drope_TR));
}

}  // namespace

void latent_backward(const AttentionBranchBackward& of, const AttentionWeights& weights,
                     const LatentBackwardScratch& scratch, TensorView spare_TC) {
  const LayerPass& pass = of.pass;
  const bool has_rank = latent_of(pass).q_rank > 0;
  heads_back(of, weights, scratch);
  Pending kv = pass.tensor.start_reduce(scratch.dkv_TX),
          rope = pass.tensor.start_reduce(scratch.drope_TR),
          q = pass.tensor.start_reduce(has_rank ? scratch.dq_TX : of.left.n_TC);
  kv.wait();
  rope.wait();
  q.wait();
  norms_back(of, weights, scratch);
  const TensorView n_SC = pass.tensor.residual_rows(of.left.n_TC);
  const TensorView made_SC = has_rank ? n_SC : pass.tensor.residual_rows(spare_TC);
  pass.on_residual_rows().linear_backward_input(made_SC, of.left.din_TX, weights.in);
  if (!has_rank) accumulate(pass.context, n_SC, made_SC);
}

void latent_weight(const AttentionBranchBackward& of) {
  const LayerPass& pass = of.pass;
  const LatentActivations& latents = of.acts.latent;
  const LatentGradients& left = of.left.latent;
  const UpGradients up = up_gradients(pass, of.left.latent);
  pass.linear_backward_weight(
      gradients_of(of.sink, of.params.q_up, with_gradient(latents.q_adapter, left.q_du_TR)),
      up.q_TX, latent_of(pass).q_rank > 0 ? latents.q_TX : of.left.n_TC);
  pass.linear_backward_weight(
      gradients_of(of.sink, of.params.kv_up, with_gradient(latents.kv_adapter, left.kv_du_TR)),
      up.kv_TX, latents.kv_TX);
  pass.on_residual_rows().linear_backward_weight(of.gradients_of_in(), of.left.din_TX,
                                                 pass.tensor.residual_rows(of.left.n_TC));
}

}  // namespace trireme
