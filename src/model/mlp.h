#pragma once
// The branch of a layer that works on each token alone:
//   n = norm(s);   h = act(n Wup);   y = h Wdown
// Its first product has gate and up columns where one passes through the other, else those of up.

#include "kernels/glu/glu_gate.h"
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
          maxima ? shape.config.mlp.up_size() / shape.config.mlp.ffn : 0,
          maxima && shape.has_all_rows(),
          shape.mlp_gradient_codes && !shape.split};
}

/// In blocks of fp8: whether h is left in codes alone, for the last product; and, of B and W in one
/// of a layer that is trained, the gradient of up and h again, for all that read them.
inline bool leaves_codes(const LayerConfig& layer, std::int64_t tensor_extent) {
  const bool whole = tensor_extent == 1 || layer.mlp.ffn % ScaleDim::kAlignment == 0;
  const bool weighted = layer.experts && layer.experts->shared_gate;
  return !weighted && layer.adapters.mlp_out == 0 && whole;
}
inline bool leaves_gradient_codes(const LayerConfig& layer, std::int64_t tensor_extent) {
  return leaves_codes(layer, tensor_extent) && tensor_extent == 1 && layer.adapters.mlp_in == 0;
}

/// The activation of a layer's MLPs, its experts' too.
GluGate glu_gate(const LayerConfig& layer);

struct MlpGradients : BranchGradients {
  static constexpr DropoutPlace kOut = DropoutPlace::kMlpOut;
  TensorView act_TF;     ///< h again
  TensorView din_codes;  ///< bytes, in place of the scratch memory

  template <class Own, class Exchanged, class... Acts>
  static void each(const LayerShape& shape, const Own& own, const Exchanged& exchanged,
                   MlpGradients& of, Acts&... acts) {
    BranchGradients::each(shape, mlp_sizes(shape), own, exchanged, of, acts...);
    own(shape.wide(shape.config.mlp.ffn), of.act_TF);
    const std::int64_t columns = shape.config.mlp.up_size();
    if (shape.codes_apart && !shape.split)
      own({DType::kF8E4M3, {fp8_gradient_bytes(shape.tokens, columns)}}, of.din_codes);
  }
};

/// From n, gathered on the way, to what the last product reads: h in `act_TF`, of its product or
/// behind it.
void mlp_forward(const LayerPass& pass, const BranchWeights& weights, const BranchActivations& acts,
                 const NormedRows& n, TensorView act_TF);
/// h as the last product reads it, just before that: its codes are made here.
ProductInput mlp_activation(const LayerPass& pass, const BranchWeights& weights,
                            const BranchActivations& acts, TensorView act_TF);

using MlpBackward = BranchBackward<MlpParams, BranchActivations, MlpGradients>;
/// From dy, while it is gathered, to the gradient of up; and h. Of both halves the gradient may be
/// in codes, for in_input and in_weight; rows for a bias take the place of what up has made.
BothOrders mlp_backward(const MlpBackward& mlp, const BranchWeights& weights, Pending dy,
                        Halves halves = Halves::kInput);

}  // namespace trireme
