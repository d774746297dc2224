// The ops on the rows of a micro-batch: norms, rotations, activations, embeddings and the loss.

#include <algorithm>

#include "bench/op_bench.h"
#include "kernels/activation_codes/activation_codes.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/dropout/dropout.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gelu/gelu.h"
#include "kernels/glu/glu.h"
#include "kernels/latent_heads/latent_heads.h"
#include "kernels/norm/norm.h"
#include "kernels/projection_norm/projection_norm.h"
#include "kernels/rope/rope.h"

namespace trireme::bench {
namespace {

/// As between two layers: with the residual add.
NormForward norm_args(Operands& operands, NormOp op) {
  const Shape rows{operands.size.rows(), operands.size.hidden}, channels{operands.size.hidden};
  NormForward args;
  args.op = op;
  args.y_TC = operands.typed(rows);
  args.sum_TC = operands.typed(rows);
  args.x_TC = operands.typed(rows);
  args.residual_TC = operands.typed(rows);
  if (op == NormOp::kNone) return args;
  args.weight_C = operands.typed(channels);
  args.rstd_T = operands.f32({rows[0]});
  if (op == NormOp::kRms) return args;
  args.bias_C = operands.typed(channels);
  args.mean_T = operands.f32({rows[0]});
  return args;
}

MakeOp norm_forward_of(NormOp op) {
  return [op](Operands& operands) -> std::function<void(Context&)> {
    return [args = norm_args(operands, op)](Context& context) { norm_forward(context, args); };
  };
}

/// For a product in fp8: codes in y's place or, apart, a pass of their own behind it.
enum class Codes : std::uint8_t { kWithin, kApart };
MakeOp norm_codes_of(Codes codes) {
  return [codes](Operands& operands) -> std::function<void(Context&)> {
    NormForward args = norm_args(operands, NormOp::kRms);
    const ScaleDim rows(operands.size.rows(), 1), columns(operands.size.hidden, 128);
    const QuantizedView out = operands.quantized(rows, columns);
    if (codes == Codes::kApart) {
      return [=](Context& context) {
        norm_forward(context, args);
        quantize(context, {out, args.y_TC});
      };
    }
    args.y_TC = {};
    args.quantized.codes = out;
    return [=](Context& context) { norm_forward(context, args); };
  };
}

/// As the model calls it: the forward's y is made once more, in place of dy.
MakeOp norm_backward_of(NormOp op) {
  return [op](Operands& operands) -> std::function<void(Context&)> {
    const NormForward forward = norm_args(operands, op);
    Context context(bench_device(), 1, detect_isa());
    norm_forward(context, forward);
    NormBackward args;
    args.op = op;
    args.dx_TC = operands.typed(forward.x_TC.shape);
    args.y_TC = forward.y_TC;
    args.dy_TC = operands.typed(forward.x_TC.shape);
    args.dresidual_TC = forward.residual_TC;
    args.s_TC = forward.sum_TC;
    args.weight_C = forward.weight_C;
    args.bias_C = forward.bias_C;
    args.mean_T = forward.mean_T;
    args.rstd_T = forward.rstd_T;
    if (op != NormOp::kNone) args.dweight_C = operands.f32(forward.weight_C.shape);
    if (op == NormOp::kLayer) args.dbias_C = operands.f32(forward.weight_C.shape);
    return [args](Context& timed) { norm_backward(timed, args); };
  };
}

enum class HeadNorm : std::uint8_t { kNone, kRms };

/// The query heads as the model has them: columns of a wider row, in place where no norm needs what
/// was there.
RopeForward rope_args(Operands& operands, HeadNorm norm) {
  const Size& size = operands.size;
  const auto heads = [&] {
    return heads_of(operands.typed({size.rows(), size.qkv()}), 0, size.heads, size.head_dim());
  };
  RopeForward args;
  args.out = heads();
  args.in = args.out;
  args.positions_T = operands.positions();
  args.cos_sin_PR = operands.f32({size.tokens, size.head_dim()});
  if (norm == HeadNorm::kNone) return args;
  args.in = heads();
  args.weight_D = operands.typed({size.head_dim()});
  args.rstd_TH = operands.f32({size.rows(), size.heads});
  return args;
}

MakeOp rope_forward_of(HeadNorm norm) {
  return [norm](Operands& operands) -> std::function<void(Context&)> {
    return [args = rope_args(operands, norm)](Context& context) { rope_forward(context, args); };
  };
}

MakeOp rope_backward_of(HeadNorm norm) {
  return [norm](Operands& operands) -> std::function<void(Context&)> {
    const RopeForward forward = rope_args(operands, norm);
    RopeBackward args;
    args.din = forward.out;
    args.dout = forward.out;
    args.positions_T = forward.positions_T;
    args.cos_sin_PR = forward.cos_sin_PR;
    if (norm == HeadNorm::kRms) {
      args.in = forward.in;
      args.weight_D = forward.weight_D;
      args.rstd_TH = forward.rstd_TH;
      args.dweight_D = operands.f32({operands.size.head_dim()});
    }
    return [args](Context& context) { rope_backward(context, args); };
  };
}

/// A third of a head rotates, as in DeepSeek-V3.
LatentDims latent_dims(const Size& size) {
  const std::int64_t rope = size.head_dim() / 4;
  return {2 * rope, rope, 2 * rope};
}
LatentRope latent_rope(Operands& operands, const LatentDims& dims) {
  return {operands.positions(), operands.f32({operands.size.tokens, dims.rope}), true};
}
HeadsView latent_heads(Operands& operands, std::int64_t count, std::int64_t head_dim) {
  return heads_of(operands.typed({operands.size.rows(), count * head_dim}), 0, count, head_dim);
}
LatentKeys latent_keys_args(Operands& operands) {
  const Size& size = operands.size;
  const LatentDims dims = latent_dims(size);
  const auto heads = [&] { return latent_heads(operands, size.heads, dims.nope + dims.rope); };
  return {heads(),
          heads(),
          operands.typed({size.rows(), size.heads * (dims.nope + dims.value)}),
          latent_heads(operands, 1, dims.rope),
          dims,
          latent_rope(operands, dims)};
}
std::function<void(Context&)> latent_queries_of(Operands& operands) {
  const Size& size = operands.size;
  const LatentDims dims = latent_dims(size);
  const std::int64_t head = dims.nope + dims.rope;
  const LatentQueries args{latent_heads(operands, size.heads, head),
                           operands.typed({size.rows(), size.heads * head}), dims,
                           latent_rope(operands, dims)};
  return [args](Context& context) { latent_queries(context, args); };
}
std::function<void(Context&)> latent_keys_of(Operands& operands) {
  return [args = latent_keys_args(operands)](Context& context) { latent_keys(context, args); };
}
std::function<void(Context&)> latent_keys_backward_of(Operands& operands) {
  const LatentKeys forward = latent_keys_args(operands);
  const LatentKeysBackward args{operands.typed(forward.in_TX.shape),
                                latent_heads(operands, 1, forward.dims.rope),
                                forward.k,
                                forward.v,
                                forward.dims,
                                forward.rope};
  return [args](Context& context) { latent_keys_backward(context, args); };
}

enum class Absorbed : std::uint8_t { kQueries, kValues };

/// Of a token, whose weight is read for it alone.
MakeOp latent_absorbed_of(Absorbed of) {
  return [of](Operands& operands) -> std::function<void(Context&)> {
    const Size& size = operands.size;
    const LatentDims dims = latent_dims(size);
    const std::int64_t latent = size.hidden / 4, head = dims.nope + dims.rope;
    const TensorView w = operands.typed({size.heads * (dims.nope + dims.value), latent});
    const auto row = [&](std::int64_t head_dim) {
      return heads_of(operands.typed({1, size.heads * head_dim}), 0, size.heads, head_dim);
    };
    const HeadsView rows = row(latent + dims.rope);
    if (of == Absorbed::kValues) {
      const LatentAbsorbedValues args{row(dims.value), rows, w, dims};
      return [args](Context& context) { latent_absorbed_values(context, args); };
    }
    const LatentRope rope = latent_rope(operands, dims);
    const LatentAbsorbedQueries args{rows,
                                     operands.typed({1, size.heads * head}),
                                     w,
                                     dims,
                                     {rope.positions_T.rows(0, 1), rope.cos_sin_PR, true}};
    return [args](Context& context) { latent_absorbed_queries(context, args); };
  };
}

/// The query heads with a norm of them all.
ProjectionNormForward projection_norm_args(Operands& operands) {
  const Size& size = operands.size;
  const std::int64_t width = size.heads * size.head_dim();
  const TensorView in = operands.typed({size.rows(), size.qkv()}),
                   out = operands.typed({size.rows(), size.qkv()});
  ProjectionNormForward args;
  args.out = heads_of(out, 0, size.heads, size.head_dim());
  args.in = heads_of(in, 0, size.heads, size.head_dim());
  args.squares_T = operands.f32({size.rows()});
  args.weight_X = operands.typed({width});
  args.columns = width;
  return args;
}

std::function<void(Context&)> head_dots_of(Operands& operands) {
  const ProjectionNormForward args = projection_norm_args(operands);
  const TensorView dots = operands.f32({operands.size.rows()});
  return [=](Context& context) { head_dots(context, dots, args.out, args.in); };
}

std::function<void(Context&)> projection_norm_forward_of(Operands& operands) {
  return [args = projection_norm_args(operands)](Context& context) {
    projection_norm_forward(context, args);
  };
}

std::function<void(Context&)> projection_norm_backward_of(Operands& operands) {
  const ProjectionNormForward forward = projection_norm_args(operands);
  ProjectionNormBackward args;
  args.din = forward.out;
  args.dout = forward.out;
  args.in = forward.in;
  args.squares_T = forward.squares_T;
  args.dots_T = operands.f32({operands.size.rows()});
  args.weight_X = forward.weight_X;
  args.dweight_X = operands.f32(forward.weight_X.shape);
  args.columns = forward.columns;
  return [args](Context& context) { projection_norm_backward(context, args); };
}

MakeOp glu_forward_of(GluGate gate) {
  return [gate](Operands& operands) -> std::function<void(Context&)> {
    const std::int64_t rows = operands.size.rows(), ffn = operands.size.ffn;
    const TensorView act = operands.typed({rows, ffn}), gate_up = operands.typed({rows, 2 * ffn});
    return [=](Context& context) { glu_forward(context, gate, act, gate_up); };
  };
}

MakeOp glu_backward_of(GluGate gate) {
  return [gate](Operands& operands) -> std::function<void(Context&)> {
    const std::int64_t rows = operands.size.rows(), ffn = operands.size.ffn;
    const TensorView d = operands.typed({rows, 2 * ffn}), dact = operands.typed({rows, ffn}),
                     gate_up = operands.typed({rows, 2 * ffn}), act = operands.typed({rows, ffn});
    return [=](Context& context) { glu_backward(context, gate, d, dact, gate_up, act); };
  };
}

/// The ops that store rows.
void activation_rows(Context& context, ActivationKind kind, TensorView act, ConstTensorView x) {
  if (kind == ActivationKind::kGelu) return gelu_forward(context, act, x);
  glu_forward(context, GluGate::kSilu, act, x);
}
struct RowsBack {
  TensorView dx, act;
  ConstTensorView dact, x;
};
void activation_rows_back(Context& context, ActivationKind kind, const RowsBack& of) {
  if (kind == ActivationKind::kGelu) return gelu_backward(context, of.dx, of.dact, of.x, of.act);
  glu_backward(context, GluGate::kSilu, of.dx, of.dact, of.x, of.act);
}

/// Codes of act or, backward, of its operand's gradient in either order and of act across.
MakeOp codes_forward_of(ActivationKind kind, Codes codes) {
  return [kind, codes](Operands& operands) -> std::function<void(Context&)> {
    const std::int64_t rows = operands.size.rows(), ffn = operands.size.ffn;
    const TensorView x = operands.typed({rows, parts_of(kind) * ffn});
    const QuantizedView out = operands.quantized(ScaleDim(rows, 1), ScaleDim(ffn, 128));
    if (codes == Codes::kWithin)
      return [=](Context& context) { activation_forward_codes(context, kind, out, x); };
    const TensorView act = operands.typed({rows, ffn});
    return [=](Context& context) {
      activation_rows(context, kind, act, x);
      quantize(context, {out, act});
    };
  };
}
MakeOp codes_backward_of(ActivationKind kind, Codes codes) {
  return [kind, codes](Operands& operands) -> std::function<void(Context&)> {
    const std::int64_t rows = operands.size.rows(), ffn = operands.size.ffn;
    const Shape wide{rows, parts_of(kind) * ffn};
    const TensorView x = operands.typed(wide), dact = operands.typed({rows, ffn});
    ScaleDim columns(ffn, 128);
    if (parts_of(kind) == 2) columns.add({ffn, 0});
    const ActivationGradient out{operands.quantized(ScaleDim(rows, 1), columns),
                                 operands.quantized(columns.with_block(1), ScaleDim(rows, 128)),
                                 operands.quantized(ScaleDim(ffn, 1), ScaleDim(rows, 128))};
    if (codes == Codes::kWithin)
      return [=](Context& context) { activation_backward_codes(context, kind, out, dact, x); };
    const TensorView dx = operands.typed(wide), act = operands.typed({rows, ffn});
    return [=](Context& context) {
      activation_rows_back(context, kind, {dx, act, dact, x});
      quantize_both(context, {out.dx, out.dx_turned, dx});
      quantize(context, {out.act_turned, act, {}, Transpose::kYes});
    };
  };
}

std::function<void(Context&)> gelu_forward_of(Operands& operands) {
  const Shape shape{operands.size.rows(), operands.size.ffn};
  const TensorView act = operands.typed(shape), x = operands.typed(shape);
  return [=](Context& context) { gelu_forward(context, act, x); };
}

std::function<void(Context&)> dropout_of(Operands& operands) {
  const Shape shape{operands.size.rows(), operands.size.ffn};
  const TensorView y = operands.typed(shape), x = operands.typed(shape);
  const TensorView tokens = operands.indices(2 * shape[0], 1 << 20).reshape({shape[0], 2});
  return [=](Context& context) { dropout(context, y, x, {0.1, 1, tokens}); };
}

std::function<void(Context&)> gelu_backward_of(Operands& operands) {
  const Shape shape{operands.size.rows(), operands.size.ffn};
  const TensorView dx = operands.typed(shape), dact = operands.typed(shape),
                   x = operands.typed(shape), act = operands.typed(shape);
  return [=](Context& context) { gelu_backward(context, dx, dact, x, act); };
}

std::function<void(Context&)> embedding_forward_of(Operands& operands) {
  const Size& size = operands.size;
  EmbeddingForward args;
  args.out_TC = operands.typed({size.rows(), size.hidden});
  args.ids_T = operands.indices(size.rows(), size.vocab);
  args.table_VC = operands.typed({size.vocab, size.hidden});
  return [args](Context& context) { embedding_forward(context, args); };
}

std::function<void(Context&)> embedding_backward_of(Operands& operands) {
  const Size& size = operands.size;
  const TensorView table = operands.f32({size.vocab, size.hidden}),
                   ids = operands.indices(size.rows(), size.vocab),
                   dout = operands.typed({size.rows(), size.hidden});
  return [=](Context& context) { embedding_backward(context, table, ids, dout); };
}

/// One chunk of the head.
CrossEntropyStatistics statistics_args(Operands& operands) {
  const std::int64_t rows = std::min<std::int64_t>(operands.size.rows(), 512),
                     vocab = operands.size.vocab;
  CrossEntropyStatistics args;
  args.maximum_T = operands.f32({rows});
  args.sum_T = operands.f32({rows});
  args.target_logit_T = operands.f32({rows});
  args.logits_TV = operands.f32({rows, vocab});
  args.targets_T = operands.indices(rows, vocab);
  args.part = {0, vocab};
  return args;
}

std::function<void(Context&)> cross_entropy_statistics_of(Operands& operands) {
  return [args = statistics_args(operands)](Context& context) {
    cross_entropy_statistics(context, args);
  };
}

/// Of a vocabulary cut in eight.
std::function<void(Context&)> cross_entropy_merge_of(Operands& operands) {
  const std::int64_t rows = operands.size.rows();
  CrossEntropyMerge args;
  args.maximum_T = operands.f32({rows});
  args.sum_T = operands.f32({rows});
  args.target_logit_T = operands.f32({rows});
  args.parts_R3T = operands.f32({8, 3, rows});
  return [args](Context& context) { cross_entropy_merge(context, args); };
}

std::function<void(Context&)> cross_entropy_finish_of(Operands& operands) {
  const CrossEntropyStatistics before = statistics_args(operands);
  Context context(bench_device(), 1, detect_isa());
  cross_entropy_statistics(context, before);
  CrossEntropyFinish args;
  args.loss_T = operands.f32(before.maximum_T.shape);
  args.dlogits_TV = operands.typed(before.logits_TV.shape);
  args.logits_TV = before.logits_TV;
  args.maximum_T = before.maximum_T;
  args.sum_T = before.sum_T;
  args.target_logit_T = before.target_logit_T;
  args.targets_T = before.targets_T;
  args.part = before.part;
  args.scale = operands.f32({1});
  return [args](Context& timed) { cross_entropy_finish(timed, args); };
}

}  // namespace

void add_token_ops() {
  add_op("norm_rms_forward", kBothTypes, norm_forward_of(NormOp::kRms));
  add_op("norm_rms_codes", kOnlyBF16, norm_codes_of(Codes::kWithin));
  add_op("norm_rms_codes_apart", kOnlyBF16, norm_codes_of(Codes::kApart));
  add_op("norm_rms_backward", kBothTypes, norm_backward_of(NormOp::kRms));
  add_op("norm_layer_forward", kBothTypes, norm_forward_of(NormOp::kLayer));
  add_op("norm_layer_backward", kBothTypes, norm_backward_of(NormOp::kLayer));
  add_op("rope_forward", kBothTypes, rope_forward_of(HeadNorm::kNone));
  add_op("rope_backward", kBothTypes, rope_backward_of(HeadNorm::kNone));
  add_op("rope_norm_forward", kBothTypes, rope_forward_of(HeadNorm::kRms));
  add_op("rope_norm_backward", kBothTypes, rope_backward_of(HeadNorm::kRms));
  add_op("norm_none_forward", kBothTypes, norm_forward_of(NormOp::kNone));
  add_op("norm_none_backward", kBothTypes, norm_backward_of(NormOp::kNone));
  add_op("latent_queries", kBothTypes, latent_queries_of);
  add_op("latent_keys", kBothTypes, latent_keys_of);
  add_op("latent_keys_backward", kBothTypes, latent_keys_backward_of);
  add_op("latent_absorbed_queries", kBothTypes, latent_absorbed_of(Absorbed::kQueries));
  add_op("latent_absorbed_values", kBothTypes, latent_absorbed_of(Absorbed::kValues));
  add_op("head_dots", kBothTypes, head_dots_of);
  add_op("projection_norm_forward", kBothTypes, projection_norm_forward_of);
  add_op("projection_norm_backward", kBothTypes, projection_norm_backward_of);
  add_op("swiglu_forward", kBothTypes, glu_forward_of(GluGate::kSilu));
  add_op("swiglu_backward", kBothTypes, glu_backward_of(GluGate::kSilu));
  const std::pair<const char*, ActivationKind> kinds[] = {{"swiglu", ActivationKind::kSwiglu},
                                                          {"gelu", ActivationKind::kGelu}};
  for (const auto& [name, kind] : kinds) {
    const std::string of(name);
    add_op(of + "_forward_codes", kOnlyBF16, codes_forward_of(kind, Codes::kWithin));
    add_op(of + "_forward_codes_apart", kOnlyBF16, codes_forward_of(kind, Codes::kApart));
    add_op(of + "_backward_codes", kOnlyBF16, codes_backward_of(kind, Codes::kWithin));
    add_op(of + "_backward_codes_apart", kOnlyBF16, codes_backward_of(kind, Codes::kApart));
  }
  add_op("geglu_forward", kBothTypes, glu_forward_of(GluGate::kGelu));
  add_op("geglu_backward", kBothTypes, glu_backward_of(GluGate::kGelu));
  add_op("gelu_forward", kBothTypes, gelu_forward_of);
  add_op("gelu_backward", kBothTypes, gelu_backward_of);
  add_op("dropout", kBothTypes, dropout_of);
  add_op("embedding_forward", kBothTypes, embedding_forward_of);
  add_op("embedding_backward", kBothTypes, embedding_backward_of);
  add_op("cross_entropy_statistics", kOnlyF32, cross_entropy_statistics_of);
  add_op("cross_entropy_merge", kOnlyF32, cross_entropy_merge_of);
  add_op("cross_entropy_finish", kBothTypes, cross_entropy_finish_of);
}

}  // namespace trireme::bench
