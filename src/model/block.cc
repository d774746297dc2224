#include "model/block.h"

#include <cmath>
#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "kernels/rope/rope.h"

namespace trireme {

namespace {

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

/// Tokens [first, first + count).
struct TokenRange {
  std::int64_t first, count;
};

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

/// Rotated q and k of some tokens, with their norms' statistics.
void rotate_heads(Context& context, const BlockPass& pass, const BlockWeights& weights,
                  const BlockActivations& acts, TokenRange tokens) {
  if (pass.config.position != PositionKind::kRope) return;
  const QkvHeads<std::byte> heads = attention_heads(acts, pass.config);
  const QkvHeads<std::byte> raw = split_heads(acts.qkv_TX, pass.config);
  const auto rows = [&](const auto& all) { return all.rows(tokens.first, tokens.count); };
  const auto rotate = [&](const HeadsView& out, const HeadsView& in, const NormWeights& norm,
                          const TensorView& rstd_TH) {
    RopeForward args;
    args.out = rows(out);
    args.in = rows(in);
    args.positions_T = rows(pass.positions);
    args.cos_sin_PD = pass.cos_sin;
    args.weight_D = norm.weight;
    if (rstd_TH.given()) args.rstd_TH = rows(rstd_TH);
    args.eps = pass.config.norm_eps;
    rope_forward(context, args);
  };
  rotate(heads.q, raw.q, weights.q_norm, acts.rstd_q_TH);
  rotate(heads.k, raw.k, weights.k_norm, acts.rstd_k_TH);
}

void attend(const BlockPass& pass, const BlockActivations& acts, const BlockForwardScratch& scratch,
            const KvCache* cache) {
  const ModelConfig& config = pass.config;
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

/// Column-parallel: y = x W + b, where x is gathered from the residual rows.
void column_parallel_forward(const BlockPass& pass, TensorView y_TN, TensorView x_TC,
                             const LinearWeights& weights, const LinearEpilogue& epilogue = {}) {
  pass.tensor.use_gathered(
      x_TC, pass.tensor.start_all_gather(x_TC), [&](std::int64_t first, std::int64_t count) {
        const auto then = [&](Context& context, std::int64_t begin, std::int64_t rows) {
          epilogue.then(context, first + begin, rows);
        };
        LinearEpilogue part = epilogue.rows(first, count);
        if (epilogue.then.given()) part.then = then;
        linear_forward(pass.context, y_TN.rows(first, count), x_TC.rows(first, count), weights,
                       part);
      });
}

/// Row-parallel: y = x W + b, where x's columns are sharded: partial sums, b
/// in the first. Reduced by way of memory as large as y. `then` is done with the residual
/// rows.
void row_parallel_forward(const BlockPass& pass, TensorView y_TC, ConstTensorView x,
                          LinearWeights weights, TensorView scratch_TC, RowsFunction then = {}) {
  if (pass.tensor.extent() == 1) {
    LinearEpilogue epilogue;
    epilogue.then = then;
    return linear_forward(pass.context, y_TC, x, weights, epilogue);
  }
  if (!pass.tensor.first()) weights.bias = {};
  pass.tensor.make_reduced(
      pass.context, y_TC, scratch_TC, [&](std::int64_t first, std::int64_t count) {
        linear_forward(pass.context, y_TC.rows(first, count), x.rows(first, count), weights);
      });
  if (then.given()) then(pass.context, 0, pass.tensor.residual_rows(y_TC).shape[0]);
}

}  // namespace

NormWeights weights_of(const ParamStore::Lease& lease, const NormParams& params) {
  NormWeights weights;
  if (params.weight != kNoParam) weights.weight = lease.weight(params.weight);
  if (params.bias != kNoParam) weights.bias = lease.weight(params.bias);
  return weights;
}

NormForward norm_of(const ModelConfig& config, const NormWeights& weights) {
  NormForward norm;
  norm.op = norm_op(config);
  norm.eps = config.norm_eps;
  norm.weight_C = weights.weight;
  norm.bias_C = weights.bias;
  return norm;
}

BlockWeights weights_of(const ParamStore::Lease& lease, const BlockParams& params,
                        const ModelConfig& config) {
  return {weights_of(lease, params.attention_norm), weights_of(lease, params.mlp_norm),
          weights_of(lease, params.q_norm),         weights_of(lease, params.k_norm),
          weights_of(lease, params.qkv, config),    weights_of(lease, params.out, config),
          weights_of(lease, params.up, config),     weights_of(lease, params.down, config)};
}

NormGradients norm_gradients(Context& context, const Gradients& sink, const NormParams& params,
                             const NormGradients& kept) {
  if (kept.weight.given()) {
    clear(context, kept.weight);
    if (kept.bias.given()) clear(context, kept.bias);
    return kept;
  }
  NormGradients gradients;
  if (params.weight != kNoParam) gradients.weight = sink.sum(params.weight);
  if (params.bias != kNoParam) gradients.bias = sink.sum(params.bias);
  return gradients;
}

namespace {

/// Of some rows alone.
NormForward rows_of(NormForward norm, std::int64_t first, std::int64_t count) {
  const auto cut = [&](auto& view) {
    if (view.given()) view = view.rows(first, count);
  };
  cut(norm.y_TC);
  cut(norm.sum_TC);
  cut(norm.mean_T);
  cut(norm.rstd_T);
  cut(norm.x_TC);
  cut(norm.residual_TC);
  return norm;
}

/// Everything up to the MLP's activation h, in scratch.act.
void forward_to_activation(const BlockPass& pass, const BlockWeights& weights,
                           const BlockActivations& acts, const BlockForwardScratch& scratch,
                           ConstTensorView residual_TC, const KvCache* cache) {
  Context& context = pass.context;
  const TensorView n_SC = pass.tensor.residual_rows(scratch.n_TC);
  const TensorView branch_SC = pass.tensor.residual_rows(scratch.branch_TC);
  NormForward norm = norm_of(pass.config, weights.attention_norm);
  norm.y_TC = n_SC;
  norm.mean_T = acts.mean1_T;
  norm.rstd_T = acts.rstd1_T;
  norm.x_TC = acts.s1_TC;
  if (residual_TC.given()) {
    norm.x_TC = branch_SC;
    norm.residual_TC = residual_TC;
    norm.sum_TC = acts.s1_TC;
  }
  norm_forward(context, norm);
  const auto rotate_rows = [&](Context& of, std::int64_t first, std::int64_t count) {
    rotate_heads(of, pass, weights, acts, {first, count});
  };
  LinearEpilogue rotated;
  rotated.then = rotate_rows;
  column_parallel_forward(pass, acts.qkv_TX, scratch.n_TC, weights.qkv, rotated);
  attend(pass, acts, scratch, cache);

  norm = norm_of(pass.config, weights.mlp_norm);
  norm.y_TC = n_SC;
  norm.mean_T = acts.mean2_T;
  norm.rstd_T = acts.rstd2_T;
  norm.x_TC = branch_SC;
  norm.residual_TC = acts.s1_TC;
  norm.sum_TC = acts.s2_TC;
  const auto norm_rows = [&](Context& of, std::int64_t first, std::int64_t count) {
    norm_forward(of, rows_of(norm, first, count));
  };
  row_parallel_forward(pass, scratch.branch_TC, acts.attended_TX, weights.out, scratch.n_TC,
                       norm_rows);
  const bool swiglu = pass.config.activation == Activation::kSwiGlu;
  column_parallel_forward(pass, scratch.act_TF, scratch.n_TC, weights.up,
                          {swiglu ? GemmEpilogue::kSwiglu : GemmEpilogue::kGelu, {}, acts.up_TU});
}

}  // namespace

void block_forward(const BlockPass& pass, const BlockWeights& weights, const BlockActivations& acts,
                   const BlockForwardScratch& scratch, ConstTensorView residual_TC,
                   const KvCache* cache) {
  forward_to_activation(pass, weights, acts, scratch, residual_TC, cache);
  row_parallel_forward(pass, scratch.branch_TC, scratch.act_TF, weights.down, scratch.n_TC);
}

void block_recompute(const BlockPass& pass, const BlockWeights& weights,
                     const BlockActivations& acts, const BlockForwardScratch& scratch,
                     Recompute recompute) {
  if (recompute == Recompute::kFull)
    forward_to_activation(pass, weights, acts, scratch, {}, nullptr);
  if (recompute == Recompute::kSelective && pass.config.qk_norm)
    rotate_heads(pass.context, pass, weights, acts, {0, acts.qkv_TX.shape[0]});
}

namespace {

/// Both halves of a layer's backward pass in steps, between which its sums and rows travel.
class BlockBackward {
 public:
  BlockBackward(const BlockPass& pass, const BlockActivations& acts,
                const BlockGradients& gradients, const Gradients& sink, const BlockParams& params)
      : pass_(pass), acts_(acts), gradients_(gradients), sink_(sink), params_(params) {}

  /// From dy, while it is gathered, to dup.
  void down_input(const BlockWeights& weights, Pending dy) const {
    const bool swiglu = pass_.config.activation == Activation::kSwiGlu;
    row_parallel_input(gradients_.dup_TU, gradients_.dy_TC, std::move(dy), weights.down,
                       {swiglu ? GemmEpilogue::kSwigluBackward : GemmEpilogue::kGeluBackward,
                        acts_.up_TU, gradients_.act_TF});
  }
  /// This rank's part of n2's gradient, in n2.
  void up_input(const BlockWeights& weights) const {
    linear_backward_input(pass_.context, gradients_.n2_TC, gradients_.dup_TU, weights.up);
  }
  void up_input_reduced(const BlockWeights& weights) const {
    column_parallel_input(gradients_.n2_TC, gradients_.dup_TU, weights.up, gradients_.ds2_TC);
  }
  /// n2's gradient gives way to n2.
  void mlp_norm(const BlockWeights& weights) const {
    norm(params_.mlp_norm, weights.mlp_norm, gradients_.norms.mlp,
         {gradients_.n2_TC, gradients_.dy_TC, acts_.s2_TC, acts_.mean2_T, acts_.rstd2_T},
         gradients_.ds2_TC);
  }
  /// From ds2, while it is gathered, to dqkv.
  void attention(const BlockWeights& weights, const BlockBackwardScratch& scratch,
                 Pending ds2) const {
    row_parallel_input(scratch.dattended_TX, gradients_.ds2_TC, std::move(ds2), weights.out);
    attend(weights, scratch);
  }
  /// This rank's part of n1's gradient, in n1.
  void qkv_input(const BlockWeights& weights) const {
    linear_backward_input(pass_.context, gradients_.n1_TC, gradients_.dqkv_TX, weights.qkv);
  }
  void qkv_input_reduced(const BlockWeights& weights, TensorView ds1_TC) const {
    column_parallel_input(gradients_.n1_TC, gradients_.dqkv_TX, weights.qkv, ds1_TC);
  }
  void attention_norm(const BlockWeights& weights, TensorView ds1_TC) const {
    norm(params_.attention_norm, weights.attention_norm, gradients_.norms.attention,
         {gradients_.n1_TC, gradients_.ds2_TC, acts_.s1_TC, acts_.mean1_T, acts_.rstd1_T}, ds1_TC);
  }

  void down_weight() const { product(params_.down, gradients_.dy_TC, gradients_.act_TF); }
  void up_weight() const { product(params_.up, gradients_.dup_TU, gradients_.n2_TC); }
  void out_weight() const { product(params_.out, gradients_.ds2_TC, acts_.attended_TX); }
  void qkv_weight() const { product(params_.qkv, gradients_.dqkv_TX, gradients_.n1_TC); }
  /// The norms' sums that have waited for W.
  void add_kept() const {
    add_kept(params_.attention_norm, gradients_.norms.attention);
    add_kept(params_.mlp_norm, gradients_.norms.mlp);
    add_kept(params_.q_norm, gradients_.norms.q);
    add_kept(params_.k_norm, gradients_.norms.k);
  }

 private:
  /// What the backward pass of a norm reads: the gradient of its output, which its output
  /// replaces, and of its input beside it; its input and statistics.
  struct NormOperands {
    TensorView n_TC, dresidual_TC;
    ConstTensorView s_TC, mean_T, rstd_T;
  };
  /// From attention's output to dqkv.
  void attend(const BlockWeights& weights, const BlockBackwardScratch& scratch) const {
    const ModelConfig& config = pass_.config;
    Context& context = pass_.context;
    const ConstHeadsView d_o = heads_of(scratch.dattended_TX, 0, config.heads, config.head_dim);
    attention_delta(context, scratch.delta_TH, d_o,
                    heads_of(acts_.attended_TX, 0, config.heads, config.head_dim));

    const bool rounded = scratch.dqkv_f32_TX.given();
    const TensorView sums_TX = rounded ? scratch.dqkv_f32_TX : gradients_.dqkv_TX;
    clear(context, sums_TX);
    const QkvHeads<std::byte> sums = split_heads(sums_TX, config);
    const QkvHeads<std::byte> heads = attention_heads(acts_, config);
    AttentionBackward args;
    args.dq = sums.q;
    args.dk = sums.k;
    args.dv = sums.v;
    args.d_o = d_o;
    args.q = heads.q;
    args.k = heads.k;
    args.v = heads.v;
    args.lse_TH = acts_.lse_TH;
    args.delta_TH = scratch.delta_TH;
    args.o = heads_of(acts_.attended_TX, 0, config.heads, config.head_dim);
    args.mask = pass_.mask;
    args.scale = attention_scale(config);
    pass_.context_axis.backward(context, scratch.attention, args);
    // The gradient of the rotated heads is rounded where an op for bf16 heads would store it.
    if (rounded) cast(context, gradients_.dqkv_TX, sums_TX);

    if (config.position == PositionKind::kRope) {
      const QkvHeads<std::byte> gradient = split_heads(gradients_.dqkv_TX, config);
      const QkvHeads<std::byte> raw = split_heads(acts_.qkv_TX, config);
      const auto dweight = [&](const NormParams& norm, const NormGradients& kept) {
        return norm_gradients(context, sink_, norm, kept).weight;
      };
      rotate_back(pass_, gradient.q, raw.q, weights.q_norm, acts_.rstd_q_TH,
                  dweight(params_.q_norm, gradients_.norms.q));
      rotate_back(pass_, gradient.k, raw.k, weights.k_norm, acts_.rstd_k_TH,
                  dweight(params_.k_norm, gradients_.norms.k));
    }
  }
  void norm(const NormParams& of, const NormWeights& weights, const NormGradients& kept,
            const NormOperands& operands, TensorView dx_TC) const {
    const NormGradients sums = norm_gradients(pass_.context, sink_, of, kept);
    NormBackward args;
    args.op = norm_op(pass_.config);
    args.dx_TC = pass_.tensor.residual_rows(dx_TC);
    args.y_TC = pass_.tensor.residual_rows(operands.n_TC);
    args.dweight_C = sums.weight;
    args.dbias_C = sums.bias;
    args.dy_TC = pass_.tensor.residual_rows(operands.n_TC);
    args.dresidual_TC = pass_.tensor.residual_rows(operands.dresidual_TC);
    args.s_TC = operands.s_TC;
    args.weight_C = weights.weight;
    args.bias_C = weights.bias;
    args.mean_T = operands.mean_T;
    args.rstd_T = operands.rstd_T;
    norm_backward(pass_.context, args);
  }
  /// Of a row-parallel product: dx = dy W while dy's rows are gathered.
  void row_parallel_input(TensorView dx_TN, TensorView dy_TC, Pending others,
                          const LinearWeights& weights, const LinearEpilogue& epilogue = {}) const {
    pass_.tensor.use_gathered(
        dy_TC, std::move(others), [&](std::int64_t first, std::int64_t count) {
          linear_backward_input(pass_.context, dx_TN.rows(first, count), dy_TC.rows(first, count),
                                weights, epilogue.rows(first, count));
        });
  }
  /// Of a column-parallel product: dx = dy W, reduced; scratch is what is written next.
  void column_parallel_input(TensorView dx_TC, TensorView dy_TN, const LinearWeights& weights,
                             TensorView scratch_TC) const {
    pass_.tensor.make_reduced(pass_.context, dx_TC, scratch_TC,
                              [&](std::int64_t first, std::int64_t count) {
                                linear_backward_input(pass_.context, dx_TC.rows(first, count),
                                                      dy_TN.rows(first, count), weights);
                              });
  }
  void product(const LinearParams& linear, ConstTensorView dy, ConstTensorView x) const {
    linear_backward_weight(pass_.context, gradients_of(sink_, linear, pass_.config), dy, x);
  }
  void add_kept(const NormParams& norm, const NormGradients& kept) const {
    if (kept.weight.given()) accumulate(pass_.context, sink_.sum(norm.weight), kept.weight);
    if (kept.bias.given()) accumulate(pass_.context, sink_.sum(norm.bias), kept.bias);
  }

  const BlockPass& pass_;
  const BlockActivations& acts_;
  const BlockGradients& gradients_;
  const Gradients& sink_;
  const BlockParams& params_;
};

}  // namespace

void block_backward_input(const BlockPass& pass, const BlockWeights& weights,
                          const BlockBackwardArgs& args) {
  const BlockBackward layer(pass, args.acts, args.gradients, args.sink, args.params);
  layer.down_input(weights, pass.tensor.start_all_gather(args.gradients.dy_TC));
  layer.up_input_reduced(weights);
  layer.mlp_norm(weights);
  layer.attention(weights, args.scratch, pass.tensor.start_all_gather(args.gradients.ds2_TC));
  layer.qkv_input_reduced(weights, args.ds1_TC);
  layer.attention_norm(weights, args.ds1_TC);
}

void block_backward_weight(const BlockPass& pass, const BlockActivations& acts,
                           const BlockGradients& gradients, const Gradients& sink,
                           const BlockParams& params) {
  const BlockBackward layer(pass, acts, gradients, sink, params);
  Pending n2 = pass.tensor.start_all_gather(gradients.n2_TC);
  Pending n1 = pass.tensor.start_all_gather(gradients.n1_TC);
  layer.add_kept();
  layer.down_weight();
  layer.out_weight();
  n2.wait();
  layer.up_weight();
  n1.wait();
  layer.qkv_weight();
}

void block_backward(const BlockPass& pass, const BlockWeights& weights,
                    const BlockBackwardArgs& args) {
  const BlockBackward layer(pass, args.acts, args.gradients, args.sink, args.params);
  const TensorAxis& tensor = pass.tensor;
  layer.down_input(weights, tensor.start_all_gather(args.gradients.dy_TC));
  layer.up_input(weights);
  Pending dn2 = tensor.start_reduce(args.gradients.n2_TC);
  layer.down_weight();
  dn2.wait();
  layer.mlp_norm(weights);
  Pending ds2 = tensor.start_all_gather(args.gradients.ds2_TC);
  Pending n2 = tensor.start_all_gather(args.gradients.n2_TC);
  layer.attention(weights, args.scratch, std::move(ds2));
  layer.qkv_input(weights);
  Pending dn1 = tensor.start_reduce(args.gradients.n1_TC);
  n2.wait();
  layer.up_weight();
  dn1.wait();
  layer.attention_norm(weights, args.ds1_TC);
  Pending n1 = tensor.start_all_gather(args.gradients.n1_TC);
  layer.out_weight();
  n1.wait();
  layer.qkv_weight();
  layer.add_kept();
}

}  // namespace trireme
