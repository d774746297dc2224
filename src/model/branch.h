#pragma once
// What the branches of a layer's residual stream s have in common, beside x, the branch before:
//   s' = s + x;   n = norm(s');   y = f(n), or y = norm(f(n))
// Where only y has a norm n is s'.
// The tensor axis shards the columns of f's first product and the rows of its last (Shoeybi et al.
// 2019): n (and dy backward) is all-gathered, y (and dn) reduced (TensorAxis).

#include <cstdint>
#include <utility>

#include "kernels/attention/attention.h"
#include "kernels/dropout/dropout.h"
#include "kernels/elementwise/elementwise.h"
#include "model/batch_invariance.h"
#include "model/fp8_linear.h"
#include "model/linear.h"
#include "model/norm.h"
#include "model/pass_dropout.h"
#include "model/rope_table.h"
#include "parallel/tensor_axis.h"

namespace trireme {

struct ExpertsPass;
struct LayerPass;

/// A product beside which adapters stand: its epilogue and what follows its rows come after them.
void adapted_forward(const LayerPass& pass, TensorView y_TN, ConstTensorView x_TK,
                     const LinearWeights& weights, const LinearEpilogue& epilogue);
void adapted_backward_input(const LayerPass& pass, TensorView dx_TK, ConstTensorView dy_TN,
                            const LinearWeights& weights, const LinearEpilogue& epilogue);

/// For one layer and micro-batch.
struct LayerPass {
  Context& context;
  const TensorAxis& tensor;
  ContextAxis& context_axis;
  const LayerConfig& config;  ///< with this rank's heads and MLP columns
  RopeTable rope;             ///< with RoPE
  ConstTensorView positions;  ///< [T] i32
  AttentionMask mask;
  const Fp8Products* fp8 = nullptr;  ///< where products are in fp8
  /// Where weights in NF4 are read, or in generation in fp8: room for the largest, widened.
  TensorView widened = {};
  const ExpertsPass* experts = nullptr;  ///< in a model with experts
  AdapterScratch adapters = {};          ///< in a model with adapters
  std::int64_t index = 0;                ///< of the layer in the model
  PassDropout dropout = {};              ///< in training, where the config asks for any

  [[nodiscard]] std::int64_t tokens() const { return positions.shape[0]; }
  /// Rows of a product may be made in parts, as they travel (TensorAxis), and have the same bits
  /// all at once: a library's products of few rows do not promise that on every CPU. A GPU's kernel
  /// is chosen by size, and is measured.
  [[nodiscard]] bool takes_parts() const { return tensor.extent() > 1 && !context.on_gpu(); }
  /// The same for a product of residual rows alone.
  [[nodiscard]] LayerPass on_residual_rows() const {
    LayerPass pass = *this;
    ConstTensorView& numbers = pass.adapters.dropout.numbers_T2;
    if (numbers.given()) numbers = tensor.residual_rows(numbers);
    return pass;
  }
  [[nodiscard]] bool drops_residual() const {
    return dropout.given() && config.residual_dropout > 0;
  }
  /// What dropout leaves of x, residual rows from `first` on.
  void drop(Context& of, DropoutPlace place, TensorView y_SC, ConstTensorView x_SC,
            std::int64_t first = 0) const {
    const ConstTensorView numbers = tensor.residual_rows(dropout.numbers_T2);
    trireme::dropout(of, y_SC, x_SC,
                     {config.residual_dropout, dropout.key_of(index, place),
                      numbers.rows(first, y_SC.shape[0]), 0});
  }
  void linear_forward(TensorView y_TN, const ProductInput& x, const LinearWeights& weights,
                      const LinearEpilogue& epilogue = {}) const {
    if (x.codes.given()) return fp8->forward(y_TN, x.codes, weights, epilogue);
    linear_forward(y_TN, x.x_TK, weights, epilogue);
  }
  void linear_forward(TensorView y_TN, ConstTensorView x_TK, const LinearWeights& weights,
                      const LinearEpilogue& epilogue = {}) const {
    if (weights.adapter.given()) return adapted_forward(*this, y_TN, x_TK, weights, epilogue);
    if (weights.fp8 != nullptr && fp8 != nullptr)
      return fp8->forward(y_TN, x_TK, weights, epilogue);
    const BatchInvariance alone(context, takes_parts());
    trireme::linear_forward(context, y_TN, x_TK, widen(context, weights, widened), epilogue);
  }
  void linear_backward_input(TensorView dx_TK, ConstTensorView dy_TN, const LinearWeights& weights,
                             const LinearEpilogue& epilogue = {}) const {
    if (weights.adapter.given())
      return adapted_backward_input(*this, dx_TK, dy_TN, weights, epilogue);
    if (weights.fp8 != nullptr) return fp8->backward_input(dx_TK, dy_TN, weights, epilogue);
    const BatchInvariance alone(context, takes_parts());
    trireme::linear_backward_input(context, dx_TK, dy_TN, widen(context, weights, widened),
                                   epilogue);
  }
  /// For a product that is made in parts: those in NF4 are widened once, until the next product.
  [[nodiscard]] LinearWeights for_parts(const LinearWeights& weights) const {
    return weights.nf4 ? widen(context, weights, widened) : weights;
  }
  void linear_backward_weight(const LinearGradients& gradients, ConstTensorView dy_TN,
                              ConstTensorView x_TK) const {
    if (gradients.adapter.given())
      adapter_backward_weight(context, adapters, gradients.adapter, dy_TN, x_TK);
    if (gradients.fp8 != nullptr) return fp8->backward_weight(gradients, dy_TN, x_TK);
    trireme::linear_backward_weight(context, gradients, dy_TN, x_TK);
  }
  /// Both. `x()`: what the product read, which may be made from dx.
  template <class X>
  void linear_backward(TensorView dx_TK, ConstTensorView dy_TN, const LinearWeights& weights,
                       const LinearEpilogue& epilogue, const LinearGradients& gradients,
                       const X& x) const {
    if (weights.fp8 != nullptr && !weights.adapter.given())
      return fp8->backward_both(dx_TK, dy_TN, weights, epilogue, gradients, x);
    linear_backward_input(dx_TK, dy_TN, weights, epilogue);
    linear_backward_weight(gradients, dy_TN, x());
  }
};

struct BranchWeights {
  NormWeights norm, post_norm;
  LinearWeights in, out;
};
BranchWeights weights_of(const ParamStore::Lease& lease, const BranchParams& params);

/// What the products of a branch make: the first, and what adapters make of its and the last one's
/// inputs.
struct BranchSizes {
  TensorSize in;
  std::int64_t in_ranks = 0, out_ranks = 0;
  bool in_maximum = false, out_maximum = false;  ///< LinearWeights::x_amax_1
  std::int64_t in_gradient_maxima = 0;           ///< of the first's dy_amax_P
  bool out_gradient_maximum = false;             ///< of the last's
  bool in_gradient_codes = false;                ///< no rows of it, where B and W are one
};

/// What backward reads of the forward pass. n and the last product's input are recomputed.
struct BranchActivations {
  NormActivations norm;
  NormActivations post_norm;  ///< with f(n) as its input
  TensorView in_TX;           ///< of the first product
  AdapterRows in_adapter, out_adapter;
  TensorView in_amax_1, out_amax_1;  ///< of n and of what the last product reads

  /// `visit(size, recomputed, view...)` of each, for the same of every `of`.
  template <class Visit, class... Of>
  static void each(const LayerShape& shape, const BranchSizes& sizes, const Visit& visit,
                   Of&... of) {
    const TensorSize& in = sizes.in;
    const bool full = shape.recompute == Recompute::kFull;
    const auto statistic = [&](const TensorSize& size, auto&... view) {
      visit(size, full, view...);
    };
    if (shape.config.norm_before()) NormActivations::each_statistic(shape, statistic, of.norm...);
    visit(in, full, of.in_TX...);
    if (sizes.in_ranks > 0) visit(adapter_rows(in, sizes.in_ranks), false, of.in_adapter.us_TR...);
    if (sizes.out_ranks > 0) visit(shape.wide(sizes.out_ranks), false, of.out_adapter.us_TR...);
    if (shape.magnitudes && sizes.in_ranks > 0) {
      visit(in, full, of.in_adapter.v_TN...);
      visit(adapter_gain_rows(in.shape[1]), false, of.in_adapter.gains_3N...);
    }
    if (shape.magnitudes && sizes.out_ranks > 0) {
      visit(shape.wide(shape.hidden), false, of.out_adapter.v_TN...);
      visit(adapter_gain_rows(shape.hidden), false, of.out_adapter.gains_3N...);
    }
    if (sizes.in_maximum) visit(LayerShape::maxima_of(1), full, of.in_amax_1...);
    if (sizes.out_maximum) visit(LayerShape::maxima_of(1), full, of.out_amax_1...);
    if (!shape.config.norm_after()) return;
    visit(shape.residual(), full, of.post_norm.s_TC...);
    NormActivations::each_statistic(shape, statistic, of.post_norm...);
  }
  /// What W reads of it.
  template <class Visit, class... Of>
  static void each_of_weight(const LayerShape& shape, const BranchSizes& sizes, const Visit& visit,
                             Of&... of) {
    if (shape.magnitudes && sizes.in_ranks > 0) visit(sizes.in, of.in_adapter.v_TN...);
    if (sizes.in_maximum) visit(LayerShape::maxima_of(1), of.in_amax_1...);
    if (sizes.out_maximum) visit(LayerShape::maxima_of(1), of.out_amax_1...);
  }
};

/// The gradient of the residual stream, as a norm's backward writes it.
struct StreamGradient {
  TensorView ds_TC;
  TensorView amax_1 = {};  ///< its largest magnitude, for a product that reads it
};

/// What B leaves for W. Those of width C have room for all tokens; W gathers n.
struct BranchGradients {
  TensorView dy_TC;    ///< of the residual stream behind the branch
  TensorView dout_TC;  ///< of f(n), where y is its norm or what dropout leaves; else dy is
  TensorView din_TX;
  TensorView n_TC;                     ///< its gradient before that
  TensorView din_amax_P, dout_amax_1;  ///< dout_amax: of last_product()
  TensorView in_du_TR, out_du_TR;      ///< of adapters (AdapterRows)
  NormGradients norm, post_norm;       ///< given where B and W are apart

  [[nodiscard]] const TensorView& last_product() const { return dout_TC.given() ? dout_TC : dy_TC; }
  /// dy, for what makes it.
  [[nodiscard]] StreamGradient stream(const LayerConfig& layer) const {
    const bool apart = layer.norm_after() || layer.residual_dropout > 0;
    return {dy_TC, apart ? TensorView() : dout_amax_1};
  }

  /// `own(size, gradient)` of each that has memory of its own, `exchanged(size, gradient,
  /// activation...)` of each that takes that of an activation, for the same of every `acts`.
  template <class Own, class Exchanged, class... Acts>
  static void each(const LayerShape& shape, const BranchSizes& sizes, const Own& own,
                   const Exchanged& exchanged, BranchGradients& of, Acts&... acts) {
    const TensorSize& in = sizes.in;
    if (sizes.in_ranks > 0) own(adapter_rows(in, sizes.in_ranks), of.in_du_TR);
    if (sizes.out_ranks > 0) own(shape.wide(sizes.out_ranks), of.out_du_TR);
    if (sizes.in_gradient_maxima > 0)
      own(LayerShape::maxima_of(sizes.in_gradient_maxima), of.din_amax_P);
    if (sizes.out_gradient_maximum) own(LayerShape::maxima_of(1), of.dout_amax_1);
    const TensorSize n = shape.wide(shape.hidden);
    if (shape.exchanges())
      exchanged(in, of.din_TX, acts.in_TX...);
    else if (!sizes.in_gradient_codes)
      own(in, of.din_TX);
    shape.exchanges_residual() ? exchanged(n, of.n_TC, acts.norm.s_TC...) : own(n, of.n_TC);
    const LayerConfig& config = shape.config;
    if (config.norm_after())
      shape.exchanges_residual() ? exchanged(n, of.dout_TC, acts.post_norm.s_TC...)
                                 : own(n, of.dout_TC);
    else if (config.residual_dropout > 0)
      own(n, of.dout_TC);
    if (!shape.split) return;
    if (config.norm_before()) NormGradients::each(config.norm, shape.hidden, own, of.norm);
    if (config.norm_after()) NormGradients::each(config.norm, shape.hidden, own, of.post_norm);
  }
};

/// n of a branch where its first product alone reads it (Fp8Products::normed_rows).
NormedRows normed_rows(const LayerPass& pass, TensorView n_TC, const LinearWeights& in);
/// To make its residual rows.
NormForward making(const NormedRows& n, const TensorAxis& tensor, NormForward norm);
/// Column-parallel: y = x W + b, where x is gathered from the residual rows.
void column_parallel_forward(const LayerPass& pass, TensorView y_TN, const NormedRows& x,
                             const LinearWeights& weights, const LinearEpilogue& epilogue = {});
/// The same where others read x too: its rows are all here afterwards, also in fp8, for which they
/// travel as codes otherwise.
void column_parallel_forward_and_keep(const LayerPass& pass, TensorView y_TN, TensorView x_TC,
                                      const LinearWeights& weights);
/// x as its last product alone reads it, in codes that the op which makes x leaves, or not given.
QuantizedView input_codes(const LayerPass& pass, const LinearWeights& out);
/// Row-parallel: y = x W + b, where x's columns are sharded: partial sums, b in the first. Reduced
/// by way of memory as large as y. `then` is done with the residual rows.
void row_parallel_forward(const LayerPass& pass, TensorView y_TC, const ProductInput& x,
                          LinearWeights weights, TensorView scratch_TC, RowsFunction then = {});

/// `amax`, which is kept where a product in fp8 reads it, cleared for what finds it; not given
/// where the product is no such one.
TensorView cleared_maxima(const LayerPass& pass, const LinearWeights& product,
                          const TensorView& amax_P);

inline LinearGradients with_maxima(LinearGradients gradients, const TensorView& x_amax_1,
                                   const TensorView& dy_amax_P = {}) {
  gradients.x_amax_1 = x_amax_1;
  gradients.dy_amax_P = dy_amax_P;
  return gradients;
}

/// What a step of a backward pass makes of a product.
enum class Halves : std::uint8_t { kInput, kBoth };

/// The backward pass of a branch in steps, between which its sums and rows travel. Params, Acts and
/// Left are the structs above, or those of a branch that has more.
template <class Params, class Acts, class Left>
struct BranchBackward {
  const LayerPass& pass;
  const Gradients& sink;
  const Params& params;
  const Acts& acts;
  const Left& left;

  [[nodiscard]] LinearGradients gradients_of_in() const {
    return with_maxima(gradients_of(sink, params.in, with_gradient(acts.in_adapter, left.in_du_TR)),
                       acts.in_amax_1, left.din_amax_P);
  }
  [[nodiscard]] LinearGradients gradients_of_out() const {
    return with_maxima(
        gradients_of(sink, params.out, with_gradient(acts.out_adapter, left.out_du_TR)),
        acts.out_amax_1, left.dout_amax_1);
  }
  /// From dy to the gradient of the last product, which is then gathered.
  [[nodiscard]] Pending start(const BranchWeights& weights) const {
    if (pass.drops_residual()) {
      const TensorView dout_SC = pass.tensor.residual_rows(left.dout_TC);
      pass.drop(pass.context, Left::kOut, dout_SC, pass.tensor.residual_rows(left.dy_TC));
      const TensorView amax_1 = cleared_maxima(pass, weights.out, left.dout_amax_1);
      if (amax_1.given()) leave_quantized(pass.context, {{}, amax_1}, dout_SC);
    } else if (left.dout_TC.given()) {
      NormBackward args =
          backward_of(pass.config.norm, weights.post_norm, acts.post_norm,
                      norm_gradients(pass.context, sink, params.post_norm, left.post_norm));
      args.dx_TC = pass.tensor.residual_rows(left.dout_TC);
      args.dy_TC = pass.tensor.residual_rows(left.dy_TC);
      args.amax_1 = cleared_maxima(pass, weights.out, left.dout_amax_1);
      norm_backward(pass.context, args);
    }
    return pass.tensor.start_all_gather(left.last_product());
  }
  /// Of the last product: dx = dy W while dy's rows are gathered. With `x`, which the
  /// product read and the epilogue may remake: out_weight too.
  void out_input(TensorView dx_TN, Pending dy, const BranchWeights& weights,
                 const LinearEpilogue& epilogue = {}, ConstTensorView x = {}) const {
    const TensorView& dy_TC = left.last_product();
    if (x.given()) {
      dy.wait();
      return pass.linear_backward(dx_TN, dy_TC, weights.out, epilogue, gradients_of_out(),
                                  [&] { return x; });
    }
    const LinearWeights out = pass.for_parts(weights.out);
    const auto product = [&](std::int64_t first, std::int64_t count) {
      pass.linear_backward_input(dx_TN.rows(first, count), dy_TC.rows(first, count),
                                 out.rows(first, count), epilogue.rows(first, count));
    };
    if (weights.out.fp8 == nullptr) return pass.tensor.use_gathered(dy_TC, std::move(dy), product);
    dy.wait();  // a scale is that of all rows
    product(0, dy_TC.shape[0]);
  }
  /// This rank's part of n's gradient, in n. `din`: where what makes it has left codes.
  void in_input(const BranchWeights& weights, const BothOrders& din = {}) const {
    if (din.given()) return pass.fp8->backward_input(left.n_TC, din, weights.in);
    pass.linear_backward_input(left.n_TC, left.din_TX, weights.in);
  }
  /// All of it, in the residual rows; scratch is what is written next.
  void in_input_reduced(const BranchWeights& weights, TensorView scratch_TC) const {
    if (weights.in.fp8 != nullptr) {
      in_input(weights);
      return pass.tensor.reduce(left.n_TC);
    }
    const LinearWeights in = pass.for_parts(weights.in);
    pass.tensor.make_reduced(
        pass.context, left.n_TC, scratch_TC, [&](std::int64_t first, std::int64_t count) {
          pass.linear_backward_input(left.n_TC.rows(first, count), left.din_TX.rows(first, count),
                                     in.rows(first, count));
        });
  }
  /// From n's gradient, which gives way to n, to that of s.
  void norm(const BranchWeights& weights, const StreamGradient& ds) const {
    NormBackward args = backward_of(pass.config.norm, weights.norm, acts.norm,
                                    norm_gradients(pass.context, sink, params.norm, left.norm));
    args.dx_TC = pass.tensor.residual_rows(ds.ds_TC);
    args.amax_1 = ds.amax_1;
    if (ds.amax_1.given()) clear(pass.context, ds.amax_1);
    args.y_TC = pass.tensor.residual_rows(left.n_TC);
    args.dy_TC = args.y_TC;
    args.dresidual_TC = pass.tensor.residual_rows(left.dy_TC);
    norm_backward(pass.context, args);
  }
  /// in_input, norm and in_weight, where no rank has another part of n's gradient.
  void in_both(const BranchWeights& weights, const StreamGradient& ds,
               const BothOrders& din = {}) const {
    if (din.given()) {
      in_input(weights, din);
      norm(weights, ds);
      return in_weight(din);
    }
    pass.linear_backward(left.n_TC, left.din_TX, weights.in, {}, gradients_of_in(),
                         [&]() -> ConstTensorView {
                           norm(weights, ds);
                           return left.n_TC;
                         });
  }
  void in_weight(const BothOrders& din = {}) const {
    if (din.given()) return pass.fp8->backward_weight(gradients_of_in(), din, left.n_TC);
    pass.linear_backward_weight(gradients_of_in(), left.din_TX, left.n_TC);
  }
  /// `x`: what the last product read.
  void out_weight(ConstTensorView x) const {
    pass.linear_backward_weight(gradients_of_out(), left.last_product(), x);
  }
  /// The sums of a norm that have waited for W.
  void add_kept(const NormParams& norm, const NormGradients& kept) const {
    trireme::add_kept(pass.context, sink, norm, kept);
  }
  void add_kept() const {
    add_kept(params.norm, left.norm);
    add_kept(params.post_norm, left.post_norm);
  }
};

}  // namespace trireme
