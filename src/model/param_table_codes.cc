// Which parameters stand in fp8 and in NF4.

#include "model/param_table.h"
#include "store/quantized_layout.h"

namespace trireme {

namespace {

/// The matrix of a product.
Fp8Columns declare_fp8(std::vector<ParamMeta>& metas, ParamRange matrix, bool in_out,
                       std::int64_t block, AxisRank tensor) {
  Fp8Columns columns;
  for (ParamIndex i = matrix.first; i <= matrix.last; ++i) {
    ParamMeta& meta = metas[static_cast<std::size_t>(i)];
    meta.fp8 = Fp8Copy{block, i == matrix.first};
    const QuantizedDims dims = quantized_dims(meta, tensor, block);
    const ScaleDim &in = in_out ? dims.rows : dims.columns,
                   &out = in_out ? dims.columns : dims.rows;
    const bool in_is_cut = meta.cut.given() && meta.cut.dim == (in_out ? 0 : 1);
    (in_is_cut ? columns.in_cut : columns.out_cut)
        .segments.insert((in_is_cut ? columns.in_cut : columns.out_cut).segments.end(),
                         meta.cut.segments.begin(), meta.cut.segments.end());
    columns.in = in;
    for (const ScaleDim::Part& part : out.given_parts()) columns.out.add(part);
  }
  return columns;
}

void declare_fp8(std::vector<ParamMeta>& metas, ExpertLinearParams& linear, std::int64_t block,
                 AxisRank tensor) {
  for (ParamIndex i = linear.weight.first; i <= linear.weight.last; i += linear.each)
    linear.fp8 = declare_fp8(metas, {i, i + linear.each - 1}, false, block, tensor);
}

}  // namespace

void declare_fp8(ModelParams& params, const ModelConfig& config, const Fp8Precision& precision,
                 AxisRank tensor, AxisRank expert_tensor) {
  const std::int64_t block = fp8_block(precision.recipe);
  for (ChunkParams& chunk : params.chunks) {
    std::int64_t layer = chunk.range.first_layer;
    for (BlockParams& of : chunk.blocks) {
      const bool here = layer >= precision.bf16_layers[0] &&
                        layer < config.layer_count() - precision.bf16_layers[1];
      ++layer;
      if (!here) continue;
      BlockParams::each_linear(of, [&](LinearParams& linear) {
        if (!linear.weight.given()) return;
        linear.fp8 = declare_fp8(params.metas, linear.weight, linear.in_out, block, tensor);
      });
      if (!of.experts.in.weight.given()) continue;
      declare_fp8(params.metas, of.experts.in, block, expert_tensor);
      declare_fp8(params.metas, of.experts.out, block, expert_tensor);
    }
  }
}

void declare_nf4(ModelParams& params) {
  for (ChunkParams& chunk : params.chunks) {
    for (BlockParams& block : chunk.blocks) {
      BlockParams::each_linear(block, [&](LinearParams& linear) {
        for (ParamIndex i = linear.weight.first; linear.weight.given() && i <= linear.weight.last;
             ++i) {
          ParamMeta& meta = params.metas[static_cast<std::size_t>(i)];
          expect(meta.base && !meta.fp8, "{} cannot be in NF4", meta.name);
          meta.nf4 = linear.nf4 = true;
        }
      });
    }
  }
}

}  // namespace trireme
