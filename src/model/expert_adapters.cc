#include "model/expert_adapters.h"

#include <algorithm>

#include "kernels/elementwise/elementwise.h"
#include "kernels/grouped_gemm/grouped_gemm.h"
#include "model/branch.h"
#include "model/expert_products.h"

namespace trireme {

ExpertAdapters weights_of(const ParamStore::Lease& lease, const ExpertAdapterParams& params,
                          std::int64_t experts) {
  if (!params.given()) return {};
  const auto of_each = [&](const ParamRange& range) {
    const ConstTensorView fused = lease.weight(range);
    return fused.reshape({experts, fused.shape[0] / experts, fused.shape[1]});
  };
  return {of_each(params.a), of_each(params.b), params.scale};
}

std::int64_t expert_adapter_bytes(const LayerShape& layer) {
  const AdapterRanks& ranks = layer.config.adapters;
  if (!layer.config.experts || ranks.experts_in + ranks.experts_out == 0) return 0;
  const std::int64_t ffn = layer.config.experts->ffn;
  std::int64_t columns = 0;
  if (ranks.experts_in > 0) columns = std::max(layer.hidden, 2 * ffn);
  if (ranks.experts_out > 0) columns = std::max({columns, layer.hidden, ffn});
  ArenaCursor added;
  added.take(layer.compute, {layer.expert_rows(), columns});
  return static_cast<std::int64_t>(added.bytes());
}

void ExpertAdapterProducts::product(TensorView c_RN, ConstTensorView a_RK, ConstTensorView b,
                                    Transpose transpose, const char* use) const {
  grouped_gemm(pass.context, {c_RN, a_RK, b, transpose, table.begins, table.sources, use});
}

void ExpertAdapterProducts::add_product(TensorView y_RN, ConstTensorView a_RK, ConstTensorView b,
                                        Transpose transpose, const char* use) const {
  ArenaCursor arena(pass.adapters.memory.data);
  const TensorView made = arena.take(y_RN.dtype, y_RN.shape);
  expect(arena.bytes() <= pass.adapters.memory.bytes(), "adapters of experts take {} bytes of {}",
         arena.bytes(), pass.adapters.memory.bytes());
  product(made, a_RK, b, transpose, use);
  accumulate(pass.context, y_RN.rows(0, rows), made.rows(0, rows));
}

void ExpertAdapterProducts::forward(TensorView y_RN, TensorView us_RA, ConstTensorView x_RK,
                                    const ExpertAdapters& weights) const {
  product(us_RA, x_RK, weights.a_GRK, Transpose::kYes, "adapter_forward");
  if (weights.scale != 1) scale(pass.context, us_RA.rows(0, rows), weights.scale);
  add_product(y_RN, us_RA, weights.b_GNR, Transpose::kYes, "adapter_forward");
}

void ExpertAdapterProducts::backward_input(TensorView dx_RK, TensorView du_RA,
                                           ConstTensorView dy_RN,
                                           const ExpertAdapters& weights) const {
  product(du_RA, dy_RN, weights.b_GNR, Transpose::kNo, "adapter_input_gradient");
  if (weights.scale != 1) scale(pass.context, du_RA.rows(0, rows), weights.scale);
  add_product(dx_RK, du_RA, weights.a_GRK, Transpose::kNo, "adapter_input_gradient");
}

void ExpertAdapterProducts::backward_weight(const Gradients& sink,
                                            const ExpertAdapterParams& params,
                                            const Operands& of) const {
  const std::int64_t experts = params.a.last - params.a.first + 1;
  const auto gradient = [&](const ParamRange& range, ConstTensorView a, ConstTensorView b) {
    const Gradients::Product to = sink.product(range);
    const Shape& fused = to.gradient.shape;
    grouped_gemm_weights(pass.context,
                         {to.gradient.reshape({experts, fused[0] / experts, fused[1]}), a, b,
                          to.accumulate, table.begins, table.sources, "adapter_weight_gradient"});
  };
  gradient(params.a, of.du_RA, of.x_RK);
  gradient(params.b, of.dy_RN, of.us_RA);
}

}  // namespace trireme
