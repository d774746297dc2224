#include "model/norm.h"

#include "kernels/elementwise/elementwise.h"

namespace trireme {

namespace {

NormOp op_of(const NormConfig& config, const NormWeights& weights) {
  if (!weights.weight.given()) return NormOp::kNone;
  return config.kind == NormKind::kLayer ? NormOp::kLayer : NormOp::kRms;
}

}  // namespace

NormWeights weights_of(const ParamStore::Lease& lease, const NormParams& params) {
  NormWeights weights;
  if (params.weight != kNoParam) weights.weight = lease.weight(params.weight);
  if (params.bias != kNoParam) weights.bias = lease.weight(params.bias);
  return weights;
}

NormGradients norm_gradients(Context& context, const Gradients& sink, const NormParams& params,
                             const NormGradients& kept) {
  if (kept.weight.given()) {
    clear(context, kept.weight);
    if (kept.bias.given()) clear(context, kept.bias);
    return kept;
  }
  NormGradients gradients;
  if (params.weight != kNoParam) gradients.weight = sink.sum(params.weight);
  if (params.bias != kNoParam) gradients.bias = sink.sum(params.bias);
  return gradients;
}

void add_kept(Context& context, const Gradients& sink, const NormParams& params,
              const NormGradients& kept) {
  const auto add = [&](ParamIndex index, const TensorView& sums) {
    if (!sums.given()) return;
    if (const TensorView gradient = sink.sum(index); gradient.given())
      accumulate(context, gradient, sums);
  };
  add(params.weight, kept.weight);
  add(params.bias, kept.bias);
}

NormForward forward_of(const NormConfig& config, const NormWeights& weights,
                       const NormActivations& acts) {
  NormForward args;
  args.op = op_of(config, weights);
  args.eps = config.eps;
  args.weight_offset = config.weight_offset;
  args.sum_TC = acts.s_TC;
  args.mean_T = acts.mean_T;
  args.rstd_T = acts.rstd_T;
  args.weight_C = weights.weight;
  args.bias_C = weights.bias;
  return args;
}

NormBackward backward_of(const NormConfig& config, const NormWeights& weights,
                         const NormActivations& acts, const NormGradients& gradients) {
  NormBackward args;
  args.op = op_of(config, weights);
  args.weight_offset = config.weight_offset;
  args.dweight_C = gradients.weight;
  args.dbias_C = gradients.bias;
  args.s_TC = acts.s_TC;
  args.weight_C = weights.weight;
  args.bias_C = weights.bias;
  args.mean_T = acts.mean_T;
  args.rstd_T = acts.rstd_T;
  return args;
}

}  // namespace trireme
