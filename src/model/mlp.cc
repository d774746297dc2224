#include "model/mlp.h"

namespace trireme {

void mlp_forward(const LayerPass& pass, const BranchWeights& weights, const BranchActivations& acts,
                 TensorView n_TC, TensorView act_TF) {
  const bool swiglu = pass.config.mlp.activation == Activation::kSwiGlu;
  column_parallel_forward(pass, act_TF, n_TC, weights.in,
                          {swiglu ? GemmEpilogue::kSwiglu : GemmEpilogue::kGelu, {}, acts.in_TX});
}

void mlp_backward(const MlpBackward& mlp, const BranchWeights& weights, Pending dy) {
  const bool swiglu = mlp.pass.config.mlp.activation == Activation::kSwiGlu;
  mlp.out_input(mlp.left.din_TX, std::move(dy), weights,
                {swiglu ? GemmEpilogue::kSwigluBackward : GemmEpilogue::kGeluBackward,
                 mlp.acts.in_TX, mlp.left.act_TF});
}

}  // namespace trireme
