#include "model/mlp.h"

#include "kernels/activation_codes/activation_codes.h"

namespace trireme {

namespace {

/// How an activation is called as a product ends, or where it leaves codes.
struct ActivationOps {
  GemmEpilogue forward, backward;
  ActivationKind kind;
};

ActivationOps ops_of(Activation activation) {
  using enum GemmEpilogue;
  switch (activation) {
    case Activation::kSwiGlu:
      return {kSwiglu, kSwigluBackward, ActivationKind::kSwiglu};
    case Activation::kGeGlu:
      return {kGeglu, kGegluBackward, ActivationKind::kGeglu};
    case Activation::kGeluTanh:
      return {kGelu, kGeluBackward, ActivationKind::kGelu};
  }
  throw InternalError("an activation of no kind");
}

QuantizedView activation_codes(const LayerPass& pass, const BranchWeights& weights) {
  return leaves_codes(pass.config, pass.tensor.extent()) ? input_codes(pass, weights.out)
                                                         : QuantizedView();
}

/// Where `in` and `out` are trained: what reads h and the gradient of up reads codes. Between its
/// products experts use the scratch memory.
BothOrders gradient_codes(const LayerPass& pass, const LinearGradients& in,
                          const LinearGradients& out, TensorView apart) {
  const bool quantises = pass.fp8 != nullptr && in.fp8 != nullptr && out.fp8 != nullptr &&
                         out.weight.gradient.given() && !out.adapter.given();
  if (!quantises || !leaves_gradient_codes(pass.config, pass.tensor.extent())) return {};
  if (pass.config.experts && !apart.given()) return {};
  return pass.fp8->gradient_codes(pass.tokens(), in, apart);
}

}  // namespace

GluGate glu_gate(const LayerConfig& layer) {
  return layer.mlp.activation == Activation::kGeGlu ? GluGate::kGelu : GluGate::kSilu;
}

void mlp_forward(const LayerPass& pass, const BranchWeights& weights, const BranchActivations& acts,
                 const NormedRows& n, TensorView act_TF) {
  if (activation_codes(pass, weights).given())
    return column_parallel_forward(pass, acts.in_TX, n, weights.in);
  LinearEpilogue epilogue{ops_of(pass.config.mlp.activation).forward, {}, acts.in_TX};
  epilogue.amax_P = cleared_maxima(pass, weights.out, weights.out.x_amax_1);
  column_parallel_forward(pass, act_TF, n, weights.in, epilogue);
}

ProductInput mlp_activation(const LayerPass& pass, const BranchWeights& weights,
                            const BranchActivations& acts, TensorView act_TF) {
  const QuantizedView codes = activation_codes(pass, weights);
  if (!codes.given()) return {act_TF};
  activation_forward_codes(pass.context, ops_of(pass.config.mlp.activation).kind, codes,
                           acts.in_TX);
  return {{}, codes};
}

BothOrders mlp_backward(const MlpBackward& mlp, const BranchWeights& weights, Pending dy,
                        Halves halves) {
  const LayerPass& pass = mlp.pass;
  const bool both = halves == Halves::kBoth;
  const TensorView& act_TF = mlp.left.act_TF;
  if (both) {
    const LinearGradients in = mlp.gradients_of_in(), out = mlp.gradients_of_out();
    BothOrders din = gradient_codes(pass, in, out, mlp.left.din_codes);
    if (in.bias.given()) din.rows_TN = mlp.acts.in_TX;
    const auto make = [&](const QuantizedView& act) {
      activation_backward_codes(pass.context, ops_of(pass.config.mlp.activation).kind,
                                {din.along, din.across, act, din.rows_TN}, act_TF, mlp.acts.in_TX);
    };
    if (din.given()) {
      dy.wait();
      pass.fp8->backward_both_making(act_TF, mlp.left.last_product(), weights.out, out, din, make);
      return din;
    }
  }
  LinearEpilogue epilogue{ops_of(pass.config.mlp.activation).backward, mlp.acts.in_TX, act_TF};
  epilogue.amax_P = cleared_maxima(pass, weights.in, mlp.left.din_amax_P);
  mlp.out_input(mlp.left.din_TX, std::move(dy), weights, epilogue,
                both ? act_TF : ConstTensorView());
  return {};
}

}  // namespace trireme
