#include "model/block.h"

#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "kernels/expert_rows/expert_rows.h"
#include "tensor/transfer.h"

namespace trireme {

BlockWeights weights_of(const ParamStore::Lease& lease, const BlockParams& params) {
  return {weights_of(lease, params.attention), weights_of(lease, params.mlp),
          weights_of(lease, params.experts)};
}

BlockWeights with_kept(BlockWeights weights, const BlockActivations& acts,
                       const BlockGradients* gradients) {
  const auto leave = [](LinearWeights& of, const AdapterRows& rows, const TensorView& du_TR) {
    if (of.adapter.given()) of.adapter.rows_of = with_gradient(rows, du_TR);
  };
  const BlockGradients none, &left = gradients == nullptr ? none : *gradients;
  leave(weights.attention.in, acts.attention.in_adapter, left.attention.in_du_TR);
  leave(weights.attention.q_up, acts.attention.latent.q_adapter, left.attention.latent.q_du_TR);
  leave(weights.attention.kv_up, acts.attention.latent.kv_adapter, left.attention.latent.kv_du_TR);
  leave(weights.attention.out, acts.attention.out_adapter, left.attention.out_du_TR);
  leave(weights.mlp.in, acts.mlp.in_adapter, left.mlp.in_du_TR);
  leave(weights.mlp.out, acts.mlp.out_adapter, left.mlp.out_du_TR);
  weights.attention.in.x_amax_1 = acts.attention.in_amax_1;
  weights.attention.out.x_amax_1 = acts.attention.out_amax_1;
  weights.mlp.in.x_amax_1 = acts.mlp.in_amax_1;
  weights.mlp.out.x_amax_1 = acts.mlp.out_amax_1;
  weights.attention.in.dy_amax_P = left.attention.din_amax_P;
  weights.attention.out.dy_amax_P = left.attention.dout_amax_1;
  weights.mlp.in.dy_amax_P = left.mlp.din_amax_P;
  weights.mlp.out.dy_amax_P = left.mlp.dout_amax_1;
  return weights;
}

void find_gains(const GainsPass& pass, const BlockWeights& weights) {
  enum class Columns : std::uint8_t { kWhole, kCut };
  const auto find = [&](const LinearWeights& of, Columns columns) {
    if (!of.adapter.given() || !of.adapter.magnitudes()) return;
    adapter_row_squares(pass.context, pass.adapters, widen(pass.context, of, pass.widened).weight,
                        of.in_out, of.adapter);
    if (columns == Columns::kCut && pass.tensor.extent() > 1)
      pass.tensor.sum(of.adapter.rows_of.squares());
    adapter_gains(pass.context, of.adapter);
  };
  find(weights.attention.in, Columns::kWhole);
  find(weights.attention.q_up, Columns::kWhole);
  find(weights.attention.kv_up, Columns::kWhole);
  find(weights.attention.out, Columns::kCut);
  find(weights.mlp.in, Columns::kWhole);
  find(weights.mlp.out, Columns::kCut);
}

BlockActivations lay_out_activations(ArenaCursor& arena, const LayerShape& shape, Keep which,
                                     BlockActivations acts) {
  const auto take = [&](const TensorSize& size, bool recomputed, TensorView& view) {
    if (recomputed == (which == Keep::kShared)) view = arena.take(size);
  };
  BlockActivations::each(shape, take, acts);
  return acts;
}

BlockActivations with_recomputed(const LayerShape& shape, BlockActivations acts,
                                 const BlockActivations& recomputed) {
  const auto replace = [](const TensorSize&, bool shared, TensorView& view, const TensorView& by) {
    if (shared) view = by;
  };
  BlockActivations::each(shape, replace, acts, recomputed);
  return acts;
}

BlockGradients lay_out_gradients(ArenaCursor& arena, const LayerShape& shape) {
  BlockGradients gradients;
  BlockGradients::each(
      shape, [&](const TensorSize& size, TensorView& gradient) { gradient = arena.take(size); },
      [](const TensorSize&, TensorView&) {}, gradients);
  return gradients;
}

namespace {

/// `visit(size, gradient, activation...)` of each that is exchanged.
template <class Visit, class... Acts>
void each_exchanged(const LayerShape& shape, const Visit& visit, BlockGradients& gradients,
                    Acts&... acts) {
  BlockGradients::each(
      shape, [](const TensorSize&, TensorView&) {}, visit, gradients, acts...);
}

}  // namespace

BlockActivations lay_out_spare(ArenaCursor& arena, const LayerShape& shape) {
  BlockGradients none;
  BlockActivations spare;
  const auto take = [&](const TensorSize& size, TensorView&, TensorView& activation) {
    activation = arena.take(size);
  };
  each_exchanged(shape, take, none, spare);
  return spare;
}

BlockGradients exchanged_in(const LayerShape& shape, const BlockActivations& in,
                            BlockGradients gradients) {
  const auto find = [](const TensorSize&, TensorView& gradient, const TensorView& activation) {
    gradient = activation;
  };
  each_exchanged(shape, find, gradients, in);
  return gradients;
}

void exchange(const LayerShape& shape, BlockActivations& acts, BlockActivations& spare) {
  BlockGradients none;
  const auto trade = [](const TensorSize&, TensorView&, TensorView& activation, TensorView& other) {
    std::swap(activation, other);
  };
  each_exchanged(shape, trade, none, acts, spare);
}

BlockForwardScratch lay_out_forward_scratch(ArenaCursor& arena, const LayerShape& shape) {
  BlockForwardScratch scratch;
  scratch.branch_TC = arena.take(shape.wide(shape.hidden));
  scratch.n_TC = arena.take(shape.wide(shape.hidden));
  if (!shape.mlp_codes) scratch.act_TF = arena.take(shape.wide(shape.config.mlp.ffn));
  scratch.attention = lay_out_attention_forward(arena, shape);
  return scratch;
}

namespace {

void fit(const TensorSize& size, TensorView& view) { view.shape = size.shape; }

}  // namespace

BlockActivations fitted(const LayerShape& shape, BlockActivations acts) {
  BlockActivations::each(
      shape, [](const TensorSize& size, bool, TensorView& view) { fit(size, view); }, acts);
  return acts;
}

BlockGradients fitted(const LayerShape& shape, BlockGradients gradients) {
  BlockGradients::each(shape, fit, fit, gradients);
  return gradients;
}

BlockForwardScratch fitted(const LayerShape& shape, BlockForwardScratch scratch) {
  fit(shape.wide(shape.config.mlp.ffn), scratch.act_TF);
  return scratch;
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
  QuantizedView& codes = norm.quantized.codes;
  if (codes.given()) codes = rows_of(codes, first, count);
  return norm;
}

struct LeftBranch {
  const BranchWeights& weights;
  const BranchActivations& acts;
  DropoutPlace place;
};
/// From the last product's input to y in scratch.branch; `then` is done with its rows, and may
/// write those of scratch.n.
void leave_branch(const LayerPass& pass, const LeftBranch& branch,
                  const BlockForwardScratch& scratch, const ProductInput& x,
                  RowsFunction then = {}) {
  const BranchWeights& weights = branch.weights;
  const BranchActivations& acts = branch.acts;
  const TensorView y_SC = pass.tensor.residual_rows(scratch.branch_TC);
  const auto drop_rows = [&](Context& of, std::int64_t first, std::int64_t count) {
    const TensorView rows = y_SC.rows(first, count);
    pass.drop(of, branch.place, rows, rows, first);
    if (then.given()) then(of, first, count);
  };
  if (!pass.config.norm_after())
    return row_parallel_forward(pass, scratch.branch_TC, x, weights.out, scratch.n_TC,
                                pass.drops_residual() ? RowsFunction(drop_rows) : then);
  const TensorView& kept_SC = acts.post_norm.s_TC;
  const TensorView made_SC = pass.tensor.residual_rows(scratch.n_TC);
  const bool in_place = kept_SC.shape == scratch.n_TC.shape;  // the residual stream has all rows
  NormForward norm = forward_of(pass.config.norm, weights.post_norm, acts.post_norm);
  norm.y_TC = pass.tensor.residual_rows(scratch.branch_TC);
  norm.sum_TC = {};
  norm.x_TC = kept_SC;
  const auto norm_rows = [&](Context& of, std::int64_t first, std::int64_t count) {
    if (!in_place) {
      const TensorView made = made_SC.rows(first, count);
      copy_bytes(of, kept_SC.rows(first, count).data, made.data, made.bytes());
    }
    norm_forward(of, rows_of(norm, first, count));
    if (then.given()) then(of, first, count);
  };
  row_parallel_forward(pass, in_place ? kept_SC : scratch.n_TC, x, weights.out,
                       in_place ? scratch.n_TC : scratch.branch_TC, norm_rows);
}

/// Whether ranks of the tensor axis have parts of y, or rows that others lack.
bool is_partial(const LayerPass& pass) {
  const bool all_home = pass.tensor.residual_tokens(pass.tokens()) < pass.tokens();
  return pass.tensor.extent() > 1 && (pass.config.mlp.ffn > 0 || !all_home);
}

/// Rows of x [T, C] that are not of home tokens: what the others have is added to them.
void clear_others(const LayerPass& pass, TensorView x_TC) {
  if (!is_partial(pass)) return;
  const Slice home = home_range(pass.tensor, pass.tokens());
  const std::int64_t end = home.begin + home.size;
  clear(pass.context, x_TC.rows(0, home.begin));
  clear(pass.context, x_TC.rows(end, pass.tokens() - end));
}

void reduce_experts(const LayerPass& pass, TensorView x_TC) {
  if (is_partial(pass)) pass.tensor.reduce(x_TC);
}

/// Of the MLP that all tokens share by a gate.
WeightedGlu shared_glu(const LayerPass& pass, const BlockActivations& acts) {
  return {glu_gate(pass.config),
          acts.mlp.in_TX,
          acts.experts.gate_T1.reshape({acts.experts.gate_T1.count()}),
          {},
          {}};
}

/// Of a layer with experts: tokens travel while the shared MLP computes.
void experts_to_activation(const LayerPass& pass, const BlockWeights& weights,
                           const BlockActivations& acts, const BlockForwardScratch& scratch,
                           ExpertsForward::Count counts) {
  ExpertsForward experts(pass, weights.experts, acts.experts);
  experts.start(scratch.n_TC, counts);
  if (pass.config.mlp.ffn > 0) {
    if (pass.config.experts->shared_gate) {
      column_parallel_forward_and_keep(pass, acts.mlp.in_TX, scratch.n_TC, weights.mlp.in);
      shared_gate_forward(pass, weights.experts, acts.experts, scratch.n_TC);
      weighted_glu_forward(pass.context, scratch.act_TF, shared_glu(pass, acts));
    } else {
      mlp_forward(pass, weights.mlp, acts.mlp, {scratch.n_TC}, scratch.act_TF);
    }
  }
  experts.first_product(scratch.n_TC);
}

/// From there to y in scratch.branch: rows travel home during the shared MLP's last product.
void leave_experts(const LayerPass& pass, const BlockWeights& weights, const BlockActivations& acts,
                   const BlockForwardScratch& scratch) {
  const bool shared = pass.config.mlp.ffn > 0;
  const TensorView& y_TC = scratch.branch_TC;
  ExpertsForward experts(pass, weights.experts, acts.experts);
  experts.last_product();
  if (shared)
    pass.linear_forward(y_TC, mlp_activation(pass, weights.mlp, acts.mlp, scratch.act_TF),
                        weights.mlp.out);
  else
    clear_others(pass, y_TC);
  experts.combine(y_TC, shared ? Accumulate::kYes : Accumulate::kNo);
  reduce_experts(pass, y_TC);
}

/// What a layer's forward pass begins with.
struct LayerStart {
  ConstTensorView residual_TC;
  const KvCache* cache = nullptr;
  ExpertsForward::Count counts = ExpertsForward::Count::kNo;
};

/// Before the norm, which may make rows in parts.
void clear_maximum(const LayerPass& pass, const NormedRows& n) {
  if (n.quantized.amax_P.given()) clear(pass.context, n.quantized.amax_P);
}

/// Everything up to what the MLP's activation reads; h too, in scratch.act, but for mlp_activation.
void forward_to_activation(const LayerPass& pass, const BlockWeights& weights,
                           const BlockActivations& acts, const BlockForwardScratch& scratch,
                           const LayerStart& start = {}) {
  const NormConfig& config = pass.config.norm;
  NormedRows n{scratch.n_TC};
  if (!pass.config.attention.latent) n = normed_rows(pass, scratch.n_TC, weights.attention.in);
  const TensorView branch_SC = pass.tensor.residual_rows(scratch.branch_TC);
  NormForward norm =
      making(n, pass.tensor, forward_of(config, weights.attention.norm, acts.attention.norm));
  clear_maximum(pass, n);
  norm.x_TC = branch_SC;
  norm.residual_TC = start.residual_TC;
  if (!start.residual_TC.given()) {
    norm.x_TC = acts.attention.norm.s_TC;
    norm.sum_TC = {};
  }
  norm_forward(pass.context, norm);
  const ProductInput attended =
      attend_forward(pass, weights.attention, acts.attention, scratch.attention, n, start.cache);

  n = {scratch.n_TC};
  if (!pass.config.experts) n = normed_rows(pass, scratch.n_TC, weights.mlp.in);
  norm = making(n, pass.tensor, forward_of(config, weights.mlp.norm, acts.mlp.norm));
  clear_maximum(pass, n);
  norm.x_TC = branch_SC;
  norm.residual_TC = acts.attention.norm.s_TC;
  const auto norm_rows = [&](Context& of, std::int64_t first, std::int64_t count) {
    norm_forward(of, rows_of(norm, first, count));
  };
  leave_branch(pass, {weights.attention, acts.attention, DropoutPlace::kAttentionOut}, scratch,
               attended, norm_rows);
  if (pass.config.experts) return experts_to_activation(pass, weights, acts, scratch, start.counts);
  mlp_forward(pass, weights.mlp, acts.mlp, n, scratch.act_TF);
}

void leave_mlp(const LayerPass& pass, const BlockWeights& weights, const BlockActivations& acts,
               const BlockForwardScratch& scratch) {
  leave_branch(pass, {weights.mlp, acts.mlp, DropoutPlace::kMlpOut}, scratch,
               mlp_activation(pass, weights.mlp, acts.mlp, scratch.act_TF));
}

}  // namespace

void block_forward(const LayerPass& pass, const BlockWeights& weights, const BlockActivations& acts,
                   const BlockForwardScratch& scratch, ConstTensorView residual_TC,
                   const KvCache* cache) {
  find_gains({pass.context, pass.tensor, pass.adapters, pass.widened}, weights);
  forward_to_activation(pass, weights, acts, scratch,
                        {residual_TC, cache, ExpertsForward::Count::kYes});
  if (pass.config.experts) return leave_experts(pass, weights, acts, scratch);
  leave_mlp(pass, weights, acts, scratch);
}

void block_recompute(const LayerPass& pass, const BlockWeights& weights,
                     const BlockActivations& acts, const BlockForwardScratch& scratch,
                     Recompute recompute) {
  if (recompute == Recompute::kFull) {
    forward_to_activation(pass, weights, acts, scratch);
    if (pass.config.norm_after()) leave_mlp(pass, weights, acts, scratch);
  }
  if (recompute == Recompute::kSelective)
    recompute_heads(pass, weights.attention, acts.attention, scratch.attention);
}

namespace {

AttentionBranchBackward attention_of(const LayerPass& pass, const BlockBackwardArgs& of) {
  return {pass, of.sink, of.params.attention, of.acts.attention, of.gradients.attention};
}
MlpBackward mlp_of(const LayerPass& pass, const BlockBackwardArgs& of) {
  return {pass, of.sink, of.params.mlp, of.acts.mlp, of.gradients.mlp};
}
ExpertsBackward experts_of(const LayerPass& pass, const BlockBackwardArgs& of) {
  return {pass, of.sink, of.params.experts, of.acts.experts, of.gradients.experts};
}

/// B of a branch with experts, to the gradient of the stream before it. Gradients travel while the
/// shared MLP computes: to experts during its last product's, home during its first's. Of both
/// halves W of the shared MLP too, if it has no gate.
void experts_backward_input(const LayerPass& pass, const BlockWeights& weights,
                            const BlockBackwardArgs& args, const StreamGradient& ds,
                            Halves halves = Halves::kInput) {
  const MlpBackward mlp = mlp_of(pass, args);
  const ExpertsBackward experts = experts_of(pass, args);
  const TensorView& dn_TC = mlp.left.n_TC;
  const bool shared = pass.config.mlp.ffn > 0, gated = pass.config.experts->shared_gate;
  Pending to_experts = experts.start(mlp.left.dy_TC);
  BothOrders din;
  if (shared && gated) {
    mlp.out_input(mlp.left.act_TF, mlp.start(weights.mlp), weights.mlp);
    weighted_glu_backward(pass.context, mlp.left.din_TX, args.gradients.experts.dgate_T,
                          mlp.left.act_TF, mlp.left.act_TF, shared_glu(pass, args.acts));
  } else if (shared) {
    din = mlp_backward(mlp, weights.mlp, mlp.start(weights.mlp), halves);
  }
  ExpertsBackward::GoingHome going_home =
      experts.products(weights.experts, mlp.left.dy_TC, std::move(to_experts));
  if (!shared) clear_others(pass, dn_TC);
  if (shared) mlp.in_input(weights.mlp, din);
  if (shared && gated)
    shared_gate_backward(pass, weights.experts, args.acts.experts, args.gradients.experts, dn_TC,
                         ds.ds_TC);
  experts.input(weights.experts, std::move(going_home), dn_TC,
                shared ? Accumulate::kYes : Accumulate::kNo);
  reduce_experts(pass, dn_TC);
  mlp.norm(weights.mlp, ds);
  if (shared && !gated && halves == Halves::kBoth) mlp.in_weight(din);
}

/// W of that branch, or what B of both halves has left of it; `n`: its rows are all here where the
/// shared MLP reads them.
void experts_backward_weight(const LayerPass& pass, const BlockBackwardArgs& args, Pending n,
                             Halves before = Halves::kInput) {
  const MlpBackward mlp = mlp_of(pass, args);
  const ExpertsBackward experts = experts_of(pass, args);
  const bool gated = pass.config.experts->shared_gate;
  const bool shared = pass.config.mlp.ffn > 0 && (gated || before == Halves::kInput);
  experts.weight(mlp.left.n_TC, mlp.left.dy_TC);
  if (shared) mlp.out_weight(mlp.left.act_TF);
  n.wait();
  if (!shared) return;
  mlp.in_weight();
  if (gated)
    linear_backward_weight(pass.context, gradients_of(args.sink, args.params.experts.shared_gate),
                           args.gradients.experts.dgate_logits_T1, mlp.left.n_TC);
}
/// The rows of n that other ranks of the tensor axis have.
Pending start_gather_n(const LayerPass& pass, const MlpBackward& mlp) {
  if (pass.config.experts && pass.config.mlp.ffn == 0) return {};
  return pass.tensor.start_all_gather(mlp.left.n_TC);
}

/// The same of attention, whose latents W has already.
Pending start_gather_n(const LayerPass& pass, const AttentionBranchBackward& attention) {
  const auto& latent = pass.config.attention.latent;
  if (latent && latent->q_rank > 0) return {};
  return pass.tensor.start_all_gather(attention.left.n_TC);
}

void add_kept(const AttentionBranchBackward& attention, const MlpBackward& mlp) {
  attention.add_kept();
  attention.add_kept(attention.params.q_norm, attention.left.q_norm);
  attention.add_kept(attention.params.k_norm, attention.left.k_norm);
  attention.add_kept({attention.params.sinks}, attention.left.sinks);
  mlp.add_kept();
}

}  // namespace

void block_backward_input(const LayerPass& pass, const BlockWeights& weights,
                          const BlockBackwardArgs& args, const AttentionScratch& scratch,
                          const StreamGradient& ds1) {
  const AttentionBranchBackward attention = attention_of(pass, args);
  const MlpBackward mlp = mlp_of(pass, args);
  const StreamGradient ds2 = attention.left.stream(attention.pass.config);
  if (pass.config.experts) {
    experts_backward_input(pass, weights, args, ds2);
  } else {
    mlp_backward(mlp, weights.mlp, mlp.start(weights.mlp));
    mlp.in_input_reduced(weights.mlp, ds2.ds_TC);
    mlp.norm(weights.mlp, ds2);
  }
  attend_backward(attention, weights.attention, scratch, attention.start(weights.attention));
  if (pass.config.attention.latent)
    latent_backward(attention, weights.attention, scratch.latent, ds1.ds_TC);
  else
    attention.in_input_reduced(weights.attention, ds1.ds_TC);
  attention.norm(weights.attention, ds1);
}

void block_backward_weight(const LayerPass& pass, const BlockBackwardArgs& args) {
  const AttentionBranchBackward attention = attention_of(pass, args);
  const MlpBackward mlp = mlp_of(pass, args);
  Pending n2 = start_gather_n(pass, mlp);
  Pending n1 = start_gather_n(pass, attention);
  add_kept(attention, mlp);
  if (!pass.config.experts) mlp.out_weight(mlp.left.act_TF);
  attention.out_weight(attention.acts.attended_TX);
  if (pass.config.experts) {
    experts_backward_weight(pass, args, std::move(n2));
  } else {
    n2.wait();
    mlp.in_weight();
  }
  n1.wait();
  pass.config.attention.latent ? latent_weight(attention) : attention.in_weight();
}

namespace {

/// Where nothing travels between B and W of a product they follow each other, and read dy once.
void block_backward_alone(const LayerPass& pass, const BlockWeights& weights,
                          const BlockBackwardArgs& args, const AttentionScratch& scratch,
                          const StreamGradient& ds1) {
  const AttentionBranchBackward attention = attention_of(pass, args);
  const MlpBackward mlp = mlp_of(pass, args);
  const StreamGradient ds2 = attention.left.stream(pass.config);
  if (pass.config.experts) {
    experts_backward_input(pass, weights, args, ds2, Halves::kBoth);
    experts_backward_weight(pass, args, {}, Halves::kBoth);
  } else {
    const BothOrders din = mlp_backward(mlp, weights.mlp, mlp.start(weights.mlp), Halves::kBoth);
    mlp.in_both(weights.mlp, ds2, din);
  }
  const BothOrders dqkv = attend_backward(attention, weights.attention, scratch,
                                          attention.start(weights.attention), Halves::kBoth);
  if (pass.config.attention.latent) {
    latent_backward(attention, weights.attention, scratch.latent, ds1.ds_TC);
    attention.norm(weights.attention, ds1);
    latent_weight(attention);
  } else {
    attention.in_both(weights.attention, ds1, dqkv);
  }
  add_kept(attention, mlp);
}

}  // namespace

void block_backward(const LayerPass& pass, const BlockWeights& weights,
                    const BlockBackwardArgs& args, const AttentionScratch& scratch,
                    const StreamGradient& ds1) {
  const TensorAxis& tensor = pass.tensor;
  if (pass.fp8 != nullptr && tensor.extent() == 1)
    return block_backward_alone(pass, weights, args, scratch, ds1);
  if (pass.config.experts || pass.config.attention.latent) {
    block_backward_input(pass, weights, args, scratch, ds1);
    return block_backward_weight(pass, args);
  }
  const AttentionBranchBackward attention = attention_of(pass, args);
  const MlpBackward mlp = mlp_of(pass, args);
  mlp_backward(mlp, weights.mlp, mlp.start(weights.mlp));
  mlp.in_input(weights.mlp);
  Pending dn2 = tensor.start_reduce(mlp.left.n_TC);
  mlp.out_weight(mlp.left.act_TF);
  dn2.wait();
  mlp.norm(weights.mlp, attention.left.stream(attention.pass.config));
  Pending ds2 = attention.start(weights.attention);
  Pending n2 = tensor.start_all_gather(mlp.left.n_TC);
  attend_backward(attention, weights.attention, scratch, std::move(ds2));
  attention.in_input(weights.attention);
  Pending dn1 = tensor.start_reduce(attention.left.n_TC);
  n2.wait();
  mlp.in_weight();
  dn1.wait();
  attention.norm(weights.attention, ds1);
  Pending n1 = tensor.start_all_gather(attention.left.n_TC);
  attention.out_weight(attention.acts.attended_TX);
  n1.wait();
  attention.in_weight();
  add_kept(attention, mlp);
}

}  // namespace trireme
