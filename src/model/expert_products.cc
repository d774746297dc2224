#include "model/expert_products.h"

#include <algorithm>

#include "kernels/grouped_gemm/grouped_gemm.h"
#include "kernels/grouped_gemm/grouped_gemm_quantized.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/quantize_segments.h"
#include "model/branch.h"

namespace trireme {

namespace {

constexpr std::int64_t kBlock = fp8_block(Fp8Recipe::kBlock);

/// Operands of one product, one after the other in the scratch memory.
class Operands {
 public:
  explicit Operands(const ExpertProducts& of)
      : pass_(of.pass), table_(of.table), arena_(pass_.fp8->scratch.memory.data) {}
  /// Behind an operand of `x` that has been left in the scratch memory.
  Operands(const ExpertProducts& of, const ExpertOperand& x) : Operands(of) {
    if (!x.codes.codes.given()) return;
    arena_.take(x.codes.format(), x.codes.codes.shape);
    arena_.take(DType::kF32, x.codes.scales.shape);
  }

  /// Rows along or across.
  ConstQuantizedSegments segments(const ExpertOperand& x, const ScaleDim& columns, DType format,
                                  bool across) {
    if (x.codes.codes.given()) return x.codes;
    QuantizeSegments args{take_segments(x.rows(), columns, format, across), x.x, table_.begins,
                          x.row_slot, x.slots};
    quantize_segments(pass_.context, args);
    return args.out;
  }
  QuantizedSegments take_segments(std::int64_t most, const ScaleDim& columns, DType format,
                                  bool across) {
    using Segments = QuantizedSegments;
    const ScaleDim dim = columns.with_block(fp8_block(pass_.fp8->precision.recipe));
    const std::int64_t count = table_.begins.count() - 1;
    return {take(format, Segments::codes_shape(most, count, dim, across)),
            take(DType::kF32, Segments::scales_shape(most, count, dim, across)), dim, across};
  }
  /// As they are, or where K has to be padded, that.
  ConstQuantizedMatrices padded(const ConstQuantizedMatrices& weights) {
    if (weights.columns.aligned()) return weights;
    const std::int64_t rows = weights.rows.size(), width = weights.columns.padded_size();
    const QuantizedMatrices out(
        take(weights.codes.dtype, {weights.count(), rows, width}),
        take(DType::kF32, {weights.count(), weights.rows.blocks(), weights.columns.blocks()}),
        weights.rows, weights.columns, true);
    for (std::int64_t i = 0; i < weights.count(); ++i)
      reorder(pass_.context, out[i], weights[i], Transpose::kNo);
    return out;
  }

 private:
  TensorView take(DType dtype, const Shape& shape) {
    const TensorView view = arena_.take(dtype, shape);
    expect(arena_.bytes() <= pass_.fp8->scratch.memory.bytes(), "fp8 rows of {} bytes in {}",
           arena_.bytes(), pass_.fp8->scratch.memory.bytes());
    return view;
  }
  const LayerPass& pass_;
  const ExpertTable& table_;
  ArenaCursor arena_;
};

/// Of those in fp8, their values rounded to bf16 in `memory`.
ConstTensorView widened(Context& context, const ExpertMatrices& weights, TensorView memory) {
  if (weights.fp8 == nullptr) return weights.weight;
  const ConstQuantizedMatrices quantized = weights.quantized();
  const Shape& shape = quantized.codes.shape;
  const TensorView weight = memory.rows(0, shape.count()).reshape(shape);
  for (std::int64_t i = 0; i < quantized.count(); ++i)
    dequantize(context, weight.rows(i, 1).reshape({shape[1], shape[2]}), quantized[i]);
  return weight;
}

}  // namespace

ExpertMatrices weights_of(const ParamStore::Lease& lease, const ExpertLinearParams& params) {
  const std::int64_t experts = params.experts();
  ExpertMatrices matrices;
  if (params.fp8) {
    matrices.fp8 = &params;
    matrices.lease = &lease;
  } else {
    const ConstTensorView fused = lease.weight(params.weight);
    matrices.weight = fused.reshape({experts, fused.shape[0] / experts, fused.shape[1]});
  }
  if (params.bias.given()) {
    const ConstTensorView fused = lease.weight(params.bias);
    matrices.bias = fused.reshape({experts, fused.count() / experts});
  }
  return matrices;
}

void ExpertProducts::forward(TensorView y_RN, const ExpertOperand& x_RK,
                             const ExpertMatrices& weights, const char* use) const {
  if (weights.fp8 == nullptr || pass.fp8 == nullptr) {
    return grouped_gemm(pass.context, {y_RN, x_RK.x, widened(pass.context, weights, pass.widened),
                                       Transpose::kYes, table.begins, table.sources, use});
  }
  Operands operands(*this, x_RK);
  QuantizedGroupedGemm args;
  args.c_RN = y_RN;
  args.a = operands.segments(x_RK, weights.fp8->fp8->in, DType::kF8E4M3, false);
  args.b = operands.padded(weights.quantized());
  args.begins = table.begins;
  args.sources = table.sources;
  args.precise_sums = pass.fp8->precision.recipe == Fp8Recipe::kBlock;
  args.use = use;
  grouped_gemm_quantized(pass.context, args);
}

void ExpertProducts::backward_input(TensorView dx_RK, const ExpertOperand& dy_RN,
                                    const ExpertMatrices& weights, const char* use) const {
  if (weights.fp8 == nullptr) {
    return grouped_gemm(pass.context, {dx_RK, dy_RN.x, weights.weight, Transpose::kNo, table.begins,
                                       table.sources, use});
  }
  Operands operands(*this, dy_RN);
  QuantizedGroupedGemm args;
  args.c_RN = dx_RK;
  args.a = operands.segments(dy_RN, weights.fp8->fp8->out, pass.fp8->precision.gradients, false);
  args.b = weights.lease->turned(pass.context, weights.fp8->weight, weights.fp8->each);
  args.begins = table.begins;
  args.sources = table.sources;
  args.use = use;
  grouped_gemm_quantized(pass.context, args);
}

void ExpertProducts::backward_weight(const Gradients::Product& gradient,
                                     const ExpertLinearParams& params, const ExpertOperand& dy_RN,
                                     const ExpertOperand& x_RK) const {
  const std::int64_t experts = params.experts();
  const TensorView c_GMN = gradient.gradient.reshape(
      {experts, gradient.gradient.shape[0] / experts, gradient.gradient.shape[1]});
  const char* const use = params.each == 1 ? "experts_out_dw" : "experts_in_dw";
  if (!params.fp8) {
    return grouped_gemm_weights(pass.context, {c_GMN, dy_RN.x, x_RK.x, gradient.accumulate,
                                               table.begins, table.sources, use});
  }
  Operands operands(*this);
  QuantizedGroupedGemmWeights args;
  args.c_GMN = c_GMN;
  args.a = operands.segments(dy_RN, params.fp8->out, pass.fp8->precision.gradients, true);
  args.b = operands.segments(x_RK, params.fp8->in, DType::kF8E4M3, true);
  args.accumulate = gradient.accumulate;
  args.begins = table.begins;
  args.sources = table.sources;
  args.use = use;
  grouped_gemm_quantized_weights(pass.context, args);
}

void ExpertProducts::backward_bias(const Gradients::Product& gradient, ConstTensorView dy_RN,
                                   ConstTensorView factors_R1) const {
  if (!gradient.gradient.given()) return;
  const std::int64_t columns = dy_RN.shape[1], experts = gradient.gradient.count() / columns;
  grouped_gemm_weights(pass.context,
                       {gradient.gradient.reshape({experts, columns, 1}), dy_RN, factors_R1,
                        gradient.accumulate, table.begins, table.sources, "experts_dbias"});
}

bool ExpertProducts::in_blocks(const ExpertLinearParams& params) const {
  return params.fp8 && pass.fp8 != nullptr && pass.fp8->precision.recipe == Fp8Recipe::kBlock;
}

QuantizedSegments ExpertProducts::codes_along(std::int64_t rows, const ScaleDim& columns,
                                              DType format) const {
  return Operands(*this).take_segments(rows, columns, format, false);
}

std::int64_t fp8_expert_bytes(const LayerShape& layer, const Fp8Precision& precision) {
  if (!layer.config.experts) return 0;
  const std::int64_t rows = layer.expert_rows(), ffn = layer.config.experts->ffn,
                     experts = layer.local_experts(), segments = experts * layer.expert.ranks();
  const std::int64_t blocks = QuantizedSegments::blocks(rows, segments);
  // Gate and up begin in the middle of a block at most, and end there, where F is cut.
  const auto padded = [](std::int64_t columns) { return round_up(columns, kBlock); };
  const std::int64_t in = padded(layer.hidden), out = padded(ffn) + kBlock, up = 2 * out;
  // Of weights that stand as they are multiplied, nothing.
  const std::int64_t weights = experts * std::max(layer.hidden == in ? 0 : 2 * ffn * in,
                                                  ffn % kBlock == 0 ? 0 : layer.hidden * out);
  // Codes across of one operand may have been left elsewhere.
  const std::int64_t columns = layer.hidden + (layer.expert_codes ? 0 : 2 * ffn);
  const std::int64_t along = rows * std::max(in, up) + weights, across = blocks * kBlock * columns;
  const std::int64_t codes = std::max(along, across);
  std::int64_t scales =
      4 * segments + weights / (kBlock * kBlock) + 2 * experts * (in + up) / kBlock;
  if (precision.recipe == Fp8Recipe::kBlock)
    scales += std::max(rows * (in + up) / kBlock, blocks * columns);
  constexpr std::int64_t kAlignment = 4 * 64;
  return codes + 4 * (scales + 4 * experts) + kAlignment;
}

}  // namespace trireme
