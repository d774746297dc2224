#include "model/mlp.h"

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

}  // namespace

void mlp_forward(const LayerPass& pass, const BranchWeights& weights, const BranchActivations& acts,
                 const NormedRows& n, TensorView act_TF) {
  LinearEpilogue epilogue{epilogues_of(pass.config.mlp.activation).forward, {}, acts.in_TX};
  epilogue.amax_P = cleared_maxima(pass, weights.out, weights.out.x_amax_1);
  column_parallel_forward(pass, act_TF, n, weights.in, epilogue);
}

void mlp_backward(const MlpBackward& mlp, const BranchWeights& weights, Pending dy, Halves halves) {
  LinearEpilogue epilogue{epilogues_of(mlp.pass.config.mlp.activation).backward, mlp.acts.in_TX,
                          mlp.left.act_TF};
  epilogue.amax_P = cleared_maxima(mlp.pass, weights.in, mlp.left.din_amax_P);
  mlp.out_input(mlp.left.din_TX, std::move(dy), weights, epilogue,
                halves == Halves::kBoth ? mlp.left.act_TF : ConstTensorView());
}

}  // namespace trireme
