#pragma once
// The norms of a model: weights, what F keeps, where B adds.

#include "config/model_config.h"
#include "kernels/norm/norm.h"
#include "model/layer_shape.h"
#include "model/param_table.h"
#include "store/param_store.h"

namespace trireme {

struct NormWeights {
  ConstTensorView weight, bias;
};
NormWeights weights_of(const ParamStore::Lease& lease, const NormParams& params);

/// [S, C], [S], [S]: the norm's input, and its statistics (mean of layer norm only).
struct NormActivations {
  TensorView s_TC, mean_T, rstd_T;

  /// `visit(size, view...)` of the statistics.
  template <class Visit, class... Of>
  static void each_statistic(const LayerShape& shape, const Visit& visit, Of&... of) {
    if (shape.config.norm.kind == NormKind::kLayer) visit(shape.row(), of.mean_T...);
    visit(shape.row(), of.rstd_T...);
  }
};

/// Where B adds a norm's sums, f32: to the parameters' gradients, or for W, which adds them there.
/// A block's gradients are open while its W runs, at ZeRO stages 2 and 3 only then.
struct NormGradients {
  TensorView weight, bias;

  template <class Visit>
  static void each(const NormConfig& config, std::int64_t size, const Visit& visit,
                   NormGradients& of) {
    visit({DType::kF32, {size}}, of.weight);
    if (config.kind == NormKind::kLayer) visit({DType::kF32, {size}}, of.bias);
  }
};
/// `kept`, cleared now, or where that is not given the parameters' gradients.
NormGradients norm_gradients(Context& context, const Gradients& sink, const NormParams& params,
                             const NormGradients& kept);
/// Adds what has waited for W.
void add_kept(Context& context, const Gradients& sink, const NormParams& params,
              const NormGradients& kept);

/// The ops' arguments, without weights those of no norm, but for the tensors that a norm reads and
/// makes beside its activations.
NormForward forward_of(const NormConfig& config, const NormWeights& weights,
                       const NormActivations& acts);
NormBackward backward_of(const NormConfig& config, const NormWeights& weights,
                         const NormActivations& acts, const NormGradients& gradients);

}  // namespace trireme
