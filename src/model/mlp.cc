#include "model/mlp.h"

#include "kernels/glu/glu.h"

namespace trireme {

namespace {

struct Epilogues {
  GemmEpilogue forward, backward;
};

Epilogues epilogues_of(Activation activation) {
  using enum GemmEpilogue;
  switch (activation) {
    case Activation::kSwiGlu:
      return {kSwiglu, kSwigluBackward};
    case Activation::kGeGlu:
      return {kGeglu, kGegluBackward};
    case Activation::kGeluTanh:
      return {kGelu, kGeluBackward};
  }
  throw InternalError("an activation of no kind");
}

QuantizedView activation_codes(const LayerPass& pass, const BranchWeights& weights) {
  return leaves_codes(pass.config, pass.tensor.extent()) ? input_codes(pass, weights.out)
                                                         : QuantizedView();
}

/// Where `in` and `out` are trained: what reads h and the gradient of up reads codes.
BothOrders gradient_codes(const LayerPass& pass, const LinearGradients& in,
                          const LinearGradients& out) {
  const bool quantises = pass.fp8 != nullptr && in.fp8 != nullptr && out.fp8 != nullptr &&
                         out.weight.gradient.given() && !out.adapter.given();
  if (!quantises || !leaves_gradient_codes(pass.config, pass.tensor.extent())) return {};
  return pass.fp8->gradient_codes(pass.tokens(), in);
}

}  // namespace

GluGate glu_gate(const LayerConfig& layer) {
  return layer.mlp.activation == Activation::kGeGlu ? GluGate::kGelu : GluGate::kSilu;
}

void mlp_forward(const LayerPass& pass, const BranchWeights& weights, const BranchActivations& acts,
                 const NormedRows& n, TensorView act_TF) {
  if (activation_codes(pass, weights).given())
    return column_parallel_forward(pass, acts.in_TX, n, weights.in);
  LinearEpilogue epilogue{epilogues_of(pass.config.mlp.activation).forward, {}, acts.in_TX};
  epilogue.amax_P = cleared_maxima(pass, weights.out, weights.out.x_amax_1);
  column_parallel_forward(pass, act_TF, n, weights.in, epilogue);
}

ProductInput mlp_activation(const LayerPass& pass, const BranchWeights& weights,
                            const BranchActivations& acts, TensorView act_TF) {
  const QuantizedView codes = activation_codes(pass, weights);
  if (!codes.given()) return {act_TF};
  glu_forward_codes(pass.context, glu_gate(pass.config), codes, acts.in_TX);
  return {{}, codes};
}

BothOrders mlp_backward(const MlpBackward& mlp, const BranchWeights& weights, Pending dy,
                        Halves halves) {
  const LayerPass& pass = mlp.pass;
  const bool both = halves == Halves::kBoth;
  const TensorView& act_TF = mlp.left.act_TF;
  if (both) {
    const LinearGradients out = mlp.gradients_of_out();
    const BothOrders din = gradient_codes(pass, mlp.gradients_of_in(), out);
    const auto make = [&](const QuantizedView& act) {
      glu_backward_codes(pass.context, glu_gate(pass.config), {din.along, din.across, act}, act_TF,
                         mlp.acts.in_TX);
    };
    if (din.given()) {
      dy.wait();
      pass.fp8->backward_both_making(act_TF, mlp.left.last_product(), weights.out, out, din, make);
      return din;
    }
  }
  LinearEpilogue epilogue{epilogues_of(pass.config.mlp.activation).backward, mlp.acts.in_TX,
                          act_TF};
  epilogue.amax_P = cleared_maxima(pass, weights.in, mlp.left.din_amax_P);
  mlp.out_input(mlp.left.din_TX, std::move(dy), weights, epilogue,
                both ? act_TF : ConstTensorView());
  return {};
}

}  // namespace trireme
