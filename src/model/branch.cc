#include "model/branch.h"

#include "kernels/elementwise/elementwise.h"
#include "kernels/gelu/gelu.h"
#include "kernels/glu/glu.h"
#include "kernels/magnitude/magnitude.h"

namespace trireme {

namespace {

GluGate gate_of(GemmEpilogue kind) {
  using enum GemmEpilogue;
  return kind == kSwiglu || kind == kSwigluBackward ? GluGate::kSilu : GluGate::kGelu;
}

/// `weights` without what stands beside them.
LinearWeights base_of(LinearWeights weights) {
  weights.adapter = {};
  return weights;
}

}  // namespace

void adapted_forward(const LayerPass& pass, TensorView y_TN, ConstTensorView x_TK,
                     const LinearWeights& weights, const LinearEpilogue& epilogue) {
  using enum GemmEpilogue;
  const BatchInvariance alone(pass.context, pass.takes_parts());
  const bool plain = epilogue.kind == kNone;
  const TensorView& product_TN = plain ? y_TN : epilogue.saved;
  LinearWeights base = base_of(weights);
  if (weights.adapter.magnitudes()) {
    const AdapterRows& rows = weights.adapter.rows_of;
    base.bias = {};
    pass.linear_forward(rows.v_TN, x_TK, base);
    adapter_forward(pass.context, pass.adapters, rows.v_TN, x_TK, weights.adapter);
    magnitude_forward(pass.context, product_TN, rows.v_TN, rows.gain(), weights.bias);
  } else {
    pass.linear_forward(product_TN, x_TK, base);
    adapter_forward(pass.context, pass.adapters, product_TN, x_TK, weights.adapter);
  }
  if (epilogue.kind == kGelu)
    gelu_forward(pass.context, y_TN, product_TN);
  else if (!plain)
    glu_forward(pass.context, gate_of(epilogue.kind), y_TN, product_TN);
  if (epilogue.then.given()) epilogue.then(pass.context, 0, y_TN.shape[0]);
}

void adapted_backward_input(const LayerPass& pass, TensorView dx_TK, ConstTensorView dy_TN,
                            const LinearWeights& weights, const LinearEpilogue& epilogue) {
  using enum GemmEpilogue;
  const BatchInvariance alone(pass.context, pass.takes_parts());
  const bool plain = epilogue.kind == kNone;
  const TensorView& product_TK = plain ? dx_TK : epilogue.saved;
  const ConstTensorView dv_TN =
      adapter_magnitude_gradient(pass.context, pass.adapters, dy_TN, weights.adapter);
  pass.linear_backward_input(product_TK, dv_TN, base_of(weights));
  adapter_backward_ranks(pass.context, pass.adapters, dv_TN, weights.adapter);
  adapter_backward_input(pass.context, pass.adapters, product_TK, weights.adapter);
  if (epilogue.kind == kGeluBackward)
    gelu_backward(pass.context, dx_TK, product_TK, epilogue.operand, product_TK);
  else if (!plain)
    glu_backward(pass.context, gate_of(epilogue.kind), dx_TK, product_TK, epilogue.operand,
                 product_TK);
}

BranchWeights weights_of(const ParamStore::Lease& lease, const BranchParams& params) {
  return {weights_of(lease, params.norm), weights_of(lease, params.post_norm),
          weights_of(lease, params.in), weights_of(lease, params.out)};
}

NormedRows normed_rows(const LayerPass& pass, TensorView n_TC, const LinearWeights& in) {
  const bool quantises = pass.fp8 != nullptr && in.fp8 != nullptr && !in.adapter.given();
  if (!quantises || !pass.config.norm_before()) return {n_TC};
  return pass.fp8->normed_rows(n_TC, in);
}

NormForward making(const NormedRows& n, const TensorAxis& tensor, NormForward norm) {
  norm.quantized.amax_P = n.quantized.amax_P;
  const QuantizedView& codes = n.quantized.codes;
  const TensorAxis::Rows own = tensor.residual_range(n.n_TC.shape[0]);
  if (codes.given())
    norm.quantized.codes = rows_of(codes, own.first, own.count);
  else
    norm.y_TC = n.n_TC.rows(own.first, own.count);
  return norm;
}

void column_parallel_forward(const LayerPass& pass, TensorView y_TN, const NormedRows& x,
                             const LinearWeights& weights, const LinearEpilogue& epilogue) {
  const TensorView& x_TC = x.n_TC;
  if (weights.fp8 != nullptr && weights.adapter.given()) {
    pass.tensor.start_all_gather(x_TC).wait();  // adapters read rows, not codes
    return pass.linear_forward(y_TN, x_TC, weights, epilogue);
  }
  if (weights.fp8 != nullptr && pass.fp8 != nullptr)
    return pass.fp8->forward_gathered(y_TN, x, weights, epilogue);
  const LinearWeights of_parts = pass.for_parts(weights);
  pass.tensor.use_gathered(
      x_TC, pass.tensor.start_all_gather(x_TC), [&](std::int64_t first, std::int64_t count) {
        const auto then = [&](Context& context, std::int64_t begin, std::int64_t rows) {
          epilogue.then(context, first + begin, rows);
        };
        LinearEpilogue part = epilogue.rows(first, count);
        if (epilogue.then.given()) part.then = then;
        pass.linear_forward(y_TN.rows(first, count), x_TC.rows(first, count),
                            of_parts.rows(first, count), part);
      });
}

void column_parallel_forward_and_keep(const LayerPass& pass, TensorView y_TN, TensorView x_TC,
                                      const LinearWeights& weights) {
  if (weights.fp8 == nullptr) return column_parallel_forward(pass, y_TN, {x_TC}, weights);
  pass.tensor.start_all_gather(x_TC).wait();
  pass.linear_forward(y_TN, x_TC, weights);
}

TensorView cleared_maxima(const LayerPass& pass, const LinearWeights& product,
                          const TensorView& amax_P) {
  if (pass.fp8 == nullptr || product.fp8 == nullptr || !amax_P.given()) return {};
  clear(pass.context, amax_P);
  return amax_P;
}

QuantizedView input_codes(const LayerPass& pass, const LinearWeights& out) {
  const bool quantises = pass.fp8 != nullptr && out.fp8 != nullptr && !out.adapter.given();
  return quantises ? pass.fp8->input_codes(pass.tokens(), out) : QuantizedView();
}

void row_parallel_forward(const LayerPass& pass, TensorView y_TC, const ProductInput& x,
                          LinearWeights weights, TensorView scratch_TC, RowsFunction then) {
  if (pass.tensor.extent() == 1) {
    LinearEpilogue epilogue;
    epilogue.then = then;
    return pass.linear_forward(y_TC, x, weights, epilogue);
  }
  weights = pass.for_parts(weights);
  if (!pass.tensor.first()) weights.bias = {};
  if (weights.fp8 != nullptr) {
    pass.linear_forward(y_TC, x, weights);
    pass.tensor.reduce(y_TC);
  } else {
    pass.tensor.make_reduced(
        pass.context, y_TC, scratch_TC, [&](std::int64_t first, std::int64_t count) {
          pass.linear_forward(y_TC.rows(first, count), x.x_TK.rows(first, count),
                              weights.rows(first, count));
        });
  }
  if (then.given()) then(pass.context, 0, pass.tensor.residual_rows(y_TC).shape[0]);
}

}  // namespace trireme
