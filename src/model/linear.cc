#include "model/linear.h"

#include "kernels/elementwise/elementwise.h"

namespace trireme {

LinearWeights weights_of(const ParamStore::Lease& lease, const LinearParams& params) {
  LinearWeights weights;
  if (!params.weight.given()) return weights;  // a layer has experts alone
  weights.lease = &lease;
  weights.range = params.weight;
  weights.nf4 = params.nf4;
  if (params.fp8)
    weights.fp8 = &*params.fp8;
  else if (!params.nf4)
    weights.weight = lease.weight(params.weight);
  if (params.bias.given()) weights.bias = lease.weight(params.bias);
  weights.in_out = params.in_out;
  weights.adapter = weights_of(lease, params.adapter, params.weight);
  return weights;
}

LinearGradients gradients_of(const Gradients& sink, const LinearParams& params,
                             const AdapterRows& rows) {
  LinearGradients gradients;
  gradients.weight = sink.product(params.weight);
  if (params.bias.given()) gradients.bias = sink.sum(params.bias);
  gradients.in_out = params.in_out;
  if (params.fp8) gradients.fp8 = &*params.fp8;
  gradients.adapter = gradients_of(sink, params.adapter, params.weight, rows);
  return gradients;
}

namespace {

Gemm product_with(const LinearEpilogue& epilogue) {
  Gemm args;
  args.epilogue = epilogue.kind;
  args.operand = epilogue.operand;
  args.saved = epilogue.saved;
  args.then = epilogue.then;
  return args;
}

}  // namespace

void linear_forward(Context& context, TensorView y_TN, ConstTensorView x_TK,
                    const LinearWeights& weights, const LinearEpilogue& epilogue) {
  Gemm args = product_with(epilogue);
  args.c_MN = y_TN;
  args.a = x_TK;
  args.b = weights.weight;
  args.transpose_b = weights.in_out ? Transpose::kNo : Transpose::kYes;
  args.bias_N = weights.bias;
  args.use = "linear_forward";
  gemm(context, args);
}

void linear_backward_input(Context& context, TensorView dx_TK, ConstTensorView dy_TN,
                           const LinearWeights& weights, const LinearEpilogue& epilogue) {
  Gemm args = product_with(epilogue);
  args.c_MN = dx_TK;
  args.a = dy_TN;
  args.b = weights.weight;
  args.transpose_b = weights.in_out ? Transpose::kYes : Transpose::kNo;
  args.use = "linear_input_gradient";
  gemm(context, args);
}

void linear_backward_weight(Context& context, const LinearGradients& gradients,
                            ConstTensorView dy_TN, ConstTensorView x_TK) {
  Gemm args;
  args.c_MN = gradients.weight.gradient;
  args.a = gradients.in_out ? x_TK : dy_TN;
  args.b = gradients.in_out ? dy_TN : x_TK;
  args.transpose_a = Transpose::kYes;
  args.accumulate = gradients.weight.accumulate;
  args.use = "linear_weight_gradient";
  if (args.c_MN.given()) gemm(context, args);
  if (gradients.bias.given()) column_sum(context, gradients.bias, dy_TN);
}

}  // namespace trireme
