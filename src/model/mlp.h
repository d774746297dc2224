#pragma once
// The branch of a layer that works on each token alone:
//   n = norm(s);   h = act(n Wup);   y = h Wdown
// Its first product has gate and up columns where one passes through the other, else those of up.

#include "model/branch.h"

namespace trireme {

inline BranchSizes mlp_sizes(const LayerShape& shape) {
  const AdapterRanks& ranks = shape.config.adapters;
  const bool maxima = shape.maxima && !shape.config.experts;
  return {shape.wide(shape.config.mlp.up_size()),
          ranks.mlp_in,
          ranks.mlp_out,
          maxima && shape.config.norm_before(),
          maxima,
          maxima ? shape.config.mlp.up_size() / shape.config.mlp.ffn : 0};
}

struct MlpGradients : BranchGradients {
  TensorView act_TF;  ///< h again

  template <class Own, class Exchanged, class... Acts>
  static void each(const LayerShape& shape, const Own& own, const Exchanged& exchanged,
                   MlpGradients& of, Acts&... acts) {
    BranchGradients::each(shape, mlp_sizes(shape), own, exchanged, of, acts...);
    own(shape.wide(shape.config.mlp.ffn), of.act_TF);
  }
};

/// From n, gathered on the way, to h in `act_TF`.
void mlp_forward(const LayerPass& pass, const BranchWeights& weights, const BranchActivations& acts,
                 const NormedRows& n, TensorView act_TF);

using MlpBackward = BranchBackward<MlpParams, BranchActivations, MlpGradients>;
/// From dy, while it is gathered, to the gradient of up; and h.
void mlp_backward(const MlpBackward& mlp, const BranchWeights& weights, Pending dy,
                  Halves halves = Halves::kInput);

}  // namespace trireme
