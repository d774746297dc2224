// The ops on weights and gradients. AdamW has all tensors of the model in one call; the others one
// of the largest that a layer has.

#include "bench/op_bench.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/grad_norm/grad_norm.h"
#include "kernels/muon/muon.h"
#include "kernels/nf4/nf4.h"
#include "kernels/quantize/quantize.h"
#include "kernels/shards/shards.h"
#include "kernels/update/update.h"
#include "kernels/update/update_8bit.h"

namespace trireme::bench {
namespace {

Shape largest_weight(const Size& size) { return {2 * size.ffn, size.hidden}; }

/// Four weights a layer and the embedding.
std::vector<Shape> all_weights(const Size& size) {
  std::vector<Shape> shapes = {{size.vocab, size.hidden}};
  for (std::int64_t layer = 0; layer < size.layers; ++layer) {
    shapes.insert(shapes.end(), {{size.qkv(), size.hidden},
                                 {size.hidden, size.hidden},
                                 {2 * size.ffn, size.hidden},
                                 {size.hidden, size.ffn}});
  }
  return shapes;
}

/// bf16 means that the weight's bf16 copy is written too.
std::function<void(Context&)> adamw_of(Operands& operands) {
  std::vector<UpdateTensor> tensors;
  for (const Shape& shape : all_weights(operands.size)) {
    UpdateTensor tensor;
    tensor.parameter = operands.f32(shape);
    if (operands.type == DType::kBF16) tensor.copy = operands.typed(shape);
    tensor.exp_avg = operands.f32(shape);
    tensor.exp_avg_sq = operands.squares(shape);
    tensor.gradient = operands.f32(shape);
    tensor.weight_decay = 0.1;
    tensors.push_back(tensor);
  }
  return [tensors](Context& context) { adamw_update(context, tensors, {}, {1e-6, 0.1, 0.05, 1}); };
}

/// The same with moments in 8 bits.
std::function<void(Context&)> adamw_8bit_of(Operands& operands) {
  const Size& size = operands.size;
  std::vector<CodedTensor> tensors;
  for (const Shape& shape : all_weights(size)) {
    const auto moment = [&]() -> CodedMoment {
      TensorView codes = operands.codes(shape);
      codes.dtype = DType::kU8;
      return {codes, operands.squares({ceil_div(shape.count(), kMomentBlock)}), {}};
    };
    CodedTensor tensor;
    tensor.parameter = operands.f32(shape);
    if (operands.type == DType::kBF16) tensor.copy = operands.typed(shape);
    tensor.exp_avg = moment();
    tensor.exp_avg_sq = moment();
    tensor.gradient = operands.f32(shape);
    tensor.weight_decay = 0.1;
    tensors.push_back(tensor);
  }
  return [tensors](Context& context) {
    adamw_8bit_update(context, tensors, {}, {1e-6, 0.1, 0.05, 1});
  };
}

/// Of the largest weight of a layer; the type is that of the update.
std::function<void(Context&)> muon_momentum_of(Operands& operands) {
  const Shape shape = largest_weight(operands.size);
  const MuonMomentumTensor tensor{operands.f32(shape), operands.f32(shape), operands.typed(shape)};
  return [=](Context& context) { muon_momentum(context, {&tensor, 1}, 0.95, 1); };
}
std::function<void(Context&)> muon_update_of(Operands& operands) {
  const Shape shape = largest_weight(operands.size);
  const MuonUpdateTensor tensor{operands.f32(shape), {}, operands.typed(shape), 1, 0.1};
  return [=](Context& context) { muon_update(context, {&tensor, 1}, 1e-6); };
}
std::function<void(Context&)> newton_schulz_operand_of(Operands& operands) {
  const Shape shape = largest_weight(operands.size);
  const TensorView operand = operands.typed(shape), sum = operands.f32(shape);
  return [=](Context& context) { newton_schulz_operand(context, operand, sum, 1, 1); };
}
std::function<void(Context&)> newton_schulz_polynomial_of(Operands& operands) {
  const Shape shape{operands.size.hidden, operands.size.hidden};
  const TensorView gram = operands.typed(shape), square = operands.f32(shape);
  return [=](Context& context) { newton_schulz_polynomial(context, gram, square, 0.5F, 0.5F); };
}

std::function<void(Context&)> grad_norm_of(Operands& operands) {
  const ConstTensorView gradient = operands.f32(largest_weight(operands.size));
  return [=](Context& context) {
    ExactSum sum;
    grad_norm_accumulate(context, sum, {&gradient, 1});
    benchmark::DoNotOptimize(sum);
  };
}

/// From fp32 to the benchmark's type: a copy, or a rounding.
std::function<void(Context&)> cast_of(Operands& operands) {
  const Shape shape = largest_weight(operands.size);
  const TensorView to = operands.typed(shape), from = operands.f32(shape);
  return [=](Context& context) { cast(context, to, from); };
}

/// To e4m3: with a block for each `row_block` rows and `column_block` columns, 0 for all; across,
/// as a gradient's products read it, or not.
struct Fp8 {
  std::int64_t row_block, column_block;
  Transpose transpose;
  bool amax_given;
};
MakeOp quantize_of(Fp8 how) {
  return [how](Operands& operands) {
    const Shape shape = largest_weight(operands.size);
    const ScaleDim rows(shape[0], how.row_block), columns(shape[1], how.column_block);
    const bool across = how.transpose == Transpose::kYes;
    const ScaleDim &out_rows = across ? columns : rows, &out_columns = across ? rows : columns;
    Quantize args;
    args.x = operands.typed(shape);
    args.out = {operands.codes(codes_shape(out_rows, out_columns, true)),
                operands.f32(scales_shape(out_rows, out_columns)), out_rows, out_columns, true};
    args.transpose = how.transpose;
    const Shape blocks = scales_shape(rows, columns);
    if (how.amax_given) args.amax = operands.indices(blocks.count(), 0x7f800000).reshape(blocks);
    return [args](Context& context) { quantize(context, args); };
  };
}

/// Both orders of a gradient: with the scales of blocks or, given, one.
MakeOp quantize_both_of(bool amax_given) {
  return [amax_given](Operands& operands) {
    const Shape shape = largest_weight(operands.size);
    const ScaleDim rows(shape[0], 0), columns(shape[1], 0);
    const auto take = [&](const ScaleDim& r, const ScaleDim& c) {
      return QuantizedView{operands.codes(codes_shape(r, c, true)),
                           operands.f32(scales_shape(r, c)), r, c, true};
    };
    QuantizeBoth args;
    args.x = operands.typed(shape);
    args.along =
        take(rows.with_block(amax_given ? 0 : 1), columns.with_block(amax_given ? 0 : 128));
    args.across =
        take(columns.with_block(amax_given ? 0 : 1), rows.with_block(amax_given ? 0 : 128));
    if (amax_given)
      args.along_amax = args.across_amax = operands.indices(1, 0x7f800000).reshape({1, 1});
    return [args](Context& context) { quantize_both(context, args); };
  };
}

std::function<void(Context&)> absolute_max_of(Operands& operands) {
  const Shape shape = largest_weight(operands.size);
  const ScaleDim rows(shape[0], 0), columns(shape[1], 0);
  const TensorView amax = operands.indices(1, 1).reshape({1, 1}), x = operands.typed(shape);
  return [=](Context& context) { absolute_max(context, amax, x, rows, columns); };
}

std::function<void(Context&)> dequantize_of(Operands& operands) {
  const Shape shape = largest_weight(operands.size);
  const ScaleDim rows(shape[0], 128), columns(shape[1], 128);
  const QuantizedView from{operands.codes(shape), operands.f32(scales_shape(rows, columns)), rows,
                           columns, false};
  const TensorView x = operands.typed(shape);
  return [=](Context& context) { dequantize(context, x, from); };
}

std::function<void(Context&)> reorder_of(Operands& operands) {
  const Shape shape = largest_weight(operands.size);
  const ScaleDim rows(shape[0], 128), columns(shape[1], 128);
  const QuantizedView from{operands.codes(shape), operands.f32(scales_shape(rows, columns)), rows,
                           columns, false};
  const QuantizedView to{operands.codes(codes_shape(columns, rows, true)),
                         operands.f32(scales_shape(columns, rows)), columns, rows, true};
  return [=](Context& context) { reorder(context, to, from, Transpose::kYes); };
}

/// A frozen weight as it is read, and as it is made of fp32.
Nf4View nf4_view(Operands& operands, const Shape& shape) {
  TensorView codes = operands.codes(nf4_codes_shape(shape));
  codes.dtype = DType::kU8;
  return {codes, operands.f32(nf4_absmax_shape(shape)), shape};
}
std::function<void(Context&)> nf4_quantize_of(Operands& operands) {
  const Shape shape = largest_weight(operands.size);
  const Nf4View out = nf4_view(operands, shape);
  const TensorView x = operands.f32(shape);
  return [=](Context& context) { nf4_quantize(context, out, x); };
}
std::function<void(Context&)> nf4_dequantize_of(Operands& operands) {
  const Shape shape = largest_weight(operands.size);
  const Nf4View from = nf4_view(operands, shape);
  const TensorView x = operands.typed(shape);
  return [=](Context& context) { nf4_dequantize(context, x, from); };
}

std::function<void(Context&)> clear_of(Operands& operands) {
  const TensorView to = operands.f32(largest_weight(operands.size));
  return [=](Context& context) { clear(context, to); };
}

std::function<void(Context&)> accumulate_of(Operands& operands) {
  const Shape shape = largest_weight(operands.size);
  const TensorView to = operands.f32(shape), from = operands.typed(shape);
  return [=](Context& context) { accumulate(context, to, from); };
}

/// A bucket of 128 owners, filled from the block.
std::function<void(Context&)> pack_shards_of(Operands& operands) {
  const Shape shape = largest_weight(operands.size);
  constexpr int kOwners = 128;
  const std::int64_t shard = even_slice(shape[0], kOwners, 0).size * shape[1];
  const TensorView shards = operands.typed({kOwners, shard}), local = operands.typed(shape);
  return [=](Context& context) {
    const ShardedTensor tensor{0, 0, shape[0], shape[1], -1};
    const ShardTable table{reinterpret_cast<const ShardedTensor*>(
                               context.device_constant(std::as_bytes(std::span(&tensor, 1)))),
                           1, kOwners};
    pack_shards(context, shards, local, {table, {0, shard}});
  };
}

/// The gradient of a bias.
std::function<void(Context&)> column_sum_of(Operands& operands) {
  const TensorView sum = operands.f32({operands.size.ffn}),
                   x = operands.typed({operands.size.rows(), operands.size.ffn});
  return [=](Context& context) { column_sum(context, sum, x); };
}

}  // namespace

void add_parameter_ops() {
  add_op("adamw_update", kBothTypes, adamw_of);
  add_op("adamw_8bit_update", kBothTypes, adamw_8bit_of);
  add_op("muon_momentum", kBothTypes, muon_momentum_of);
  add_op("muon_update", kBothTypes, muon_update_of);
  add_op("newton_schulz_operand", kBothTypes, newton_schulz_operand_of);
  add_op("newton_schulz_polynomial", kBothTypes, newton_schulz_polynomial_of);
  add_op("grad_norm", kOnlyF32, grad_norm_of);
  add_op("cast", kBothTypes, cast_of);
  add_op("clear", kOnlyF32, clear_of);
  add_op("absolute_max", kBothTypes, absolute_max_of);
  add_op("quantize_given", kBothTypes, quantize_of({0, 0, Transpose::kNo, true}));
  add_op("quantize_1x128", kBothTypes, quantize_of({1, 128, Transpose::kNo, false}));
  add_op("quantize_128x128", kBothTypes, quantize_of({128, 128, Transpose::kNo, false}));
  add_op("quantize_across_given", kBothTypes, quantize_of({0, 0, Transpose::kYes, true}));
  add_op("quantize_across_128x1", kBothTypes, quantize_of({128, 1, Transpose::kYes, false}));
  add_op("quantize_both_given", kBothTypes, quantize_both_of(true));
  add_op("quantize_both_blocks", kBothTypes, quantize_both_of(false));
  add_op("dequantize", kBothTypes, dequantize_of);
  add_op("reorder", kOnlyF32, reorder_of);
  add_op("nf4_quantize", kOnlyF32, nf4_quantize_of);
  add_op("nf4_dequantize", kBothTypes, nf4_dequantize_of);
  add_op("accumulate", kBothTypes, accumulate_of);
  add_op("column_sum", kBothTypes, column_sum_of);
  add_op("pack_shards", kBothTypes, pack_shards_of);
}

}  // namespace trireme::bench
