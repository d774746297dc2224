#include "model/adapter.h"

#include <algorithm>

#include "base/math.h"
#include "kernels/dropout/dropout.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/magnitude/magnitude.h"
#include "kernels/projection_norm/projection_norm.h"
#include "model/expert_adapters.h"
#include "model/layer_products.h"

namespace trireme {

namespace {

std::int64_t outputs_of(const Shape& weight, bool in_out) { return weight[in_out ? 1 : 0]; }

/// A projection's first output among those of a product, and how many all projections have.
struct Outputs {
  std::int64_t first = 0, all = 0;
};
struct WeightOf {
  const StoreLayout& layout;
  ParamRange product;
  RowPadding padding;
};
Outputs outputs_of(const WeightOf& of, const AdapterParams& params, ParamIndex weight) {
  Outputs outputs;
  for (ParamIndex i = of.product.first; i <= of.product.last; ++i) {
    const Shape& shape =
        of.padding == RowPadding::kTaken ? of.layout.padded_shape(i) : of.layout.local_shape(i);
    const std::int64_t size = outputs_of(shape, params.in_out);
    if (i < weight) outputs.first += size;
    outputs.all += size;
  }
  return outputs;
}

ArenaCursor arena_of(const AdapterScratch& scratch) { return ArenaCursor(scratch.memory.data); }

void check(const ArenaCursor& arena, const AdapterScratch& scratch) {
  expect(arena.bytes() <= scratch.memory.bytes(), "adapters take {} bytes of {}", arena.bytes(),
         scratch.memory.bytes());
}

/// Rows [first, first + rows) and columns [column, ...) of a matrix.
template <class View>
auto block_of(const View& matrix, std::int64_t first, std::int64_t rows, std::int64_t column,
              std::int64_t columns) {
  return heads_of(matrix.rows(first, rows), column, 1, columns);
}

/// B of all adapters: as it is where there is one of all outputs, else blocks of a matrix in
/// `arena`.
ConstTensorView joined_b(Context& context, ArenaCursor& arena, const AdapterWeights& weights) {
  const AdapterWeights::Part& only = weights.parts[0];
  if (weights.count == 1 && only.b_NR.shape[0] == weights.outputs) return only.b_NR;
  const TensorView joined = arena.take(only.b_NR.dtype, {weights.outputs, weights.a_RK.shape[0]});
  clear(context, joined);
  std::int64_t column = 0;
  for (int i = 0; i < weights.count; ++i) {
    const AdapterWeights::Part& part = weights.parts[static_cast<std::size_t>(i)];
    const std::int64_t rows = part.b_NR.shape[0], rank = part.b_NR.shape[1];
    copy_heads(context, block_of(joined, part.first, rows, column, rank),
               heads_of(part.b_NR, 0, 1, rank));
    column += rank;
  }
  return joined;
}

DropoutChoice choice_of(const AdapterDropout& dropout, const DropoutStream& stream,
                        std::int64_t first_row, const ConstTensorView& x_TK) {
  const std::int64_t rows = x_TK.shape[0], columns = x_TK.shape[1];
  return {dropout.share, stream.key, dropout.numbers_T2.rows(first_row, rows),
          columns < stream.inputs ? dropout.tensor_rank * columns : 0};
}

/// What A reads: x, or what dropout leaves of it, in `arena`.
ConstTensorView read_by_a(Context& context, ArenaCursor& arena, const AdapterDropout& dropout,
                          const DropoutStream& stream, std::int64_t first_row,
                          ConstTensorView x_TK) {
  if (!dropout.numbers_T2.given()) return x_TK;
  const TensorView kept_TK = arena.take(x_TK.dtype, x_TK.shape);
  trireme::dropout(context, kept_TK, x_TK, choice_of(dropout, stream, first_row, x_TK));
  return kept_TK;
}

/// c += op(a) b, where bf16 is rounded before the sum as after it, as torch has it.
void add_product(Context& context, ArenaCursor& arena, Gemm args, TensorView c) {
  if (c.dtype == DType::kF32 && !context.batch_invariant()) {
    args.c_MN = c;
    args.accumulate = Accumulate::kYes;
    return gemm(context, args);
  }
  args.c_MN = arena.take(c.dtype, c.shape);
  gemm(context, args);
  accumulate(context, c, args.c_MN);
}

}  // namespace

AdapterWeights weights_of(const ParamStore::Lease& lease, const AdapterParams& params,
                          ParamRange product, RowPadding padding) {
  AdapterWeights weights;
  if (!params.a.given()) return weights;
  weights.a_RK = lease.weight(params.a);
  weights.scale = params.scale;
  weights.dropout = params.dropout;
  for (const AdapterParams::Part& part : params.parts) {
    const Outputs outputs = outputs_of({lease.layout(), product, padding}, params, part.weight);
    weights.outputs = outputs.all;
    AdapterWeights::Part& to = weights.parts.at(static_cast<std::size_t>(weights.count++));
    to = {padding == RowPadding::kTaken ? lease.padded_weight(part.b) : lease.weight(part.b),
          outputs.first};
    if (part.magnitude != kNoParam) to.magnitude_N = lease.weight(part.magnitude);
  }
  return weights;
}

AdapterGradients gradients_of(const Gradients& sink, const AdapterParams& params,
                              ParamRange product, const AdapterRows& rows, RowPadding padding) {
  AdapterGradients gradients;
  if (!params.a.given()) return gradients;
  gradients.a_RK = sink.product(params.a);
  gradients.rows_of = rows;
  gradients.dropout = params.dropout;
  for (const AdapterParams::Part& part : params.parts) {
    const Outputs outputs = outputs_of({sink.layout(), product, padding}, params, part.weight);
    gradients.outputs = outputs.all;
    AdapterGradients::Part& to = gradients.parts.at(static_cast<std::size_t>(gradients.count++));
    to = {padding == RowPadding::kTaken ? sink.padded_product(part.b)
                                        : sink.product({part.b, part.b}),
          outputs.first};
    if (part.magnitude != kNoParam) to.magnitude_N = sink.sum(part.magnitude);
  }
  return gradients;
}

namespace {

/// Rows of W + s B A that stand in fp32 at once: few, but a head's in no more than 64 turns.
std::int64_t length_rows(std::int64_t rows) {
  return std::min(rows, std::max<std::int64_t>(64, ceil_div(rows, 64)));
}

}  // namespace

std::size_t adapter_scratch_bytes(const AdaptedProduct& of) {
  if (of.ranks == 0) return 0;
  ArenaCursor forward, ranks, input, weight, lengths, kept;
  for (ArenaCursor* const cursor : {&ranks, &weight})
    if (of.magnitudes) cursor->take(of.compute, {of.tokens, of.out});
  for (ArenaCursor* const cursor : {&forward, &ranks, &lengths})
    if (of.joined) cursor->take(of.compute, {of.out, of.ranks});
  const auto made_apart = [&](DType type) { return type != DType::kF32 || !of.in_place; };
  if (made_apart(of.result)) forward.take(of.result, {of.tokens, of.out});
  if (made_apart(of.compute) || of.dropout) input.take(of.compute, {of.tokens, of.in});
  if (of.dropout) kept.take(of.compute, {of.tokens, of.in});
  if (of.magnitudes) weight.take(DType::kF32, {of.out});
  for (int i = 0; of.joined && i < 2; ++i) weight.take(DType::kF32, {of.out, of.ranks});
  for (const DType type : {DType::kF32, of.compute})
    if (of.magnitudes) lengths.take(type, {length_rows(of.out) * of.in});
  return std::max({forward.bytes(), ranks.bytes(), input.bytes(), weight.bytes(), lengths.bytes(),
                   kept.bytes()});
}

AdapterScratch lay_out_adapters(ArenaCursor& arena, const LayerShape& layer, bool in_place) {
  std::size_t bytes = 0;
  for (const LayerProduct& of : layer_products(layer)) {
    bytes = std::max(
        bytes, adapter_scratch_bytes({layer.tokens, of.in, of.out, of.adapter_ranks, layer.compute,
                                      layer.compute, layer.magnitudes, layer.dropout, in_place}));
  }
  bytes = std::max(bytes, static_cast<std::size_t>(expert_adapter_bytes(layer)));
  if (bytes == 0) return {};
  return {arena.take(DType::kF8E4M3, {static_cast<std::int64_t>(bytes)})};
}

namespace {

/// Where dv stands, before all else.
TensorView dv_in(ArenaCursor& arena, const ConstTensorView& dy_TN) {
  return arena.take(dy_TN.dtype, dy_TN.shape);
}

}  // namespace

ConstTensorView adapter_magnitude_gradient(Context& context, const AdapterScratch& scratch,
                                           ConstTensorView dy_TN, const AdapterWeights& weights) {
  if (!weights.magnitudes()) return dy_TN;
  ArenaCursor arena = arena_of(scratch);
  const TensorView dv_TN = dv_in(arena, dy_TN);
  magnitude_forward(context, dv_TN, dy_TN, weights.rows_of.gain());
  return dv_TN;
}

void adapter_forward(Context& context, const AdapterScratch& scratch, TensorView y_TN,
                     ConstTensorView x_TK, const AdapterWeights& weights) {
  ArenaCursor arena = arena_of(scratch), reading = arena;
  const TensorView& us_TR = weights.rows_of.us_TR;
  Gemm down;
  down.c_MN = us_TR;
  down.a = read_by_a(context, reading, scratch.dropout, weights.dropout, weights.first_row, x_TK);
  check(reading, scratch);
  down.b = weights.a_RK;
  down.transpose_b = Transpose::kYes;
  down.use = "adapter_forward";
  gemm(context, down);
  if (weights.scale != 1) scale(context, us_TR, weights.scale);
  Gemm up;
  up.a = us_TR;
  up.b = joined_b(context, arena, weights);
  up.transpose_b = Transpose::kYes;
  up.use = "adapter_forward";
  add_product(context, arena, up, y_TN);
  check(arena, scratch);
}

void adapter_backward_ranks(Context& context, const AdapterScratch& scratch, ConstTensorView dv_TN,
                            const AdapterWeights& weights) {
  ArenaCursor arena = arena_of(scratch);
  if (weights.magnitudes()) (void)dv_in(arena, dv_TN);
  const TensorView& du_TR = weights.rows_of.du_TR;
  Gemm up;
  up.c_MN = du_TR;
  up.a = dv_TN;
  up.b = joined_b(context, arena, weights);
  check(arena, scratch);
  up.use = "adapter_input_gradient";
  gemm(context, up);
  if (weights.scale != 1) scale(context, du_TR, weights.scale);
}

void adapter_backward_input(Context& context, const AdapterScratch& scratch, TensorView dx_TK,
                            const AdapterWeights& weights) {
  ArenaCursor arena = arena_of(scratch);
  Gemm down;
  down.a = weights.rows_of.du_TR;
  down.b = weights.a_RK;
  down.use = "adapter_input_gradient";
  if (scratch.dropout.numbers_T2.given()) {
    down.c_MN = arena.take(dx_TK.dtype, dx_TK.shape);
    check(arena, scratch);
    gemm(context, down);
    dropout(context, down.c_MN, down.c_MN,
            choice_of(scratch.dropout, weights.dropout, weights.first_row, dx_TK));
    return accumulate(context, dx_TK, down.c_MN);
  }
  add_product(context, arena, down, dx_TK);
  check(arena, scratch);
}

namespace {

/// c (+)= a^T b
void weight_product(Context& context, TensorView c_MN, Accumulate adds, ConstTensorView a,
                    ConstTensorView b) {
  Gemm args;
  args.c_MN = c_MN;
  args.accumulate = adds;
  args.a = a;
  args.transpose_a = Transpose::kYes;
  args.b = b;
  args.use = "adapter_weight_gradient";
  gemm(context, args);
}

/// dB, from dv.
void b_gradients(Context& context, const AdapterScratch& scratch, ArenaCursor arena,
                 const AdapterGradients& gradients, ConstTensorView dv_TN) {
  const TensorView& us_TR = gradients.rows_of.us_TR;
  const AdapterGradients::Part& only = gradients.parts[0];
  if (gradients.count == 1 && only.b_NR.gradient.shape[0] == gradients.outputs)
    return weight_product(context, only.b_NR.gradient, only.b_NR.accumulate, dv_TN, us_TR);
  // Of these the blocks of projections are B's gradients.
  const TensorView joined = arena.take(DType::kF32, {gradients.outputs, us_TR.shape[1]});
  weight_product(context, joined, Accumulate::kNo, dv_TN, us_TR);
  std::int64_t column = 0;
  for (int i = 0; i < gradients.count; ++i) {
    const AdapterGradients::Part& part = gradients.parts[static_cast<std::size_t>(i)];
    const TensorView& to = part.b_NR.gradient;
    const bool adds = part.b_NR.accumulate == Accumulate::kYes;
    ArenaCursor behind = arena;
    const TensorView made = adds ? behind.take(DType::kF32, to.shape) : to;
    check(behind, scratch);
    copy_heads(context, heads_of(made, 0, 1, to.shape[1]),
               block_of(joined, part.first, to.shape[0], column, to.shape[1]));
    if (adds) accumulate(context, to, made);
    column += to.shape[1];
  }
}

}  // namespace

void adapter_backward_weight(Context& context, const AdapterScratch& scratch,
                             const AdapterGradients& gradients, ConstTensorView dy_TN,
                             ConstTensorView x_TK) {
  const AdapterRows& rows = gradients.rows_of;
  ArenaCursor arena = arena_of(scratch), reading = arena;
  const ConstTensorView read_TK =
      read_by_a(context, reading, scratch.dropout, gradients.dropout, 0, x_TK);
  check(reading, scratch);
  weight_product(context, gradients.a_RK.gradient, gradients.a_RK.accumulate, rows.du_TR, read_TK);
  if (!gradients.parts[0].magnitude_N.given())
    return b_gradients(context, scratch, arena, gradients, dy_TN);
  const TensorView dv_TN = dv_in(arena, dy_TN),
                   dgain_N = arena.take(DType::kF32, {gradients.outputs});
  clear(context, dgain_N);
  magnitude_backward(context, {dv_TN, dgain_N, dy_TN, rows.v_TN, rows.gain()});
  for (int i = 0; i < gradients.count; ++i) {
    const AdapterGradients::Part& part = gradients.parts[static_cast<std::size_t>(i)];
    const std::int64_t count = part.magnitude_N.count();
    magnitude_gradient(context, part.magnitude_N, dgain_N.rows(part.first, count),
                       rows.inverse().rows(part.first, count));
  }
  b_gradients(context, scratch, arena, gradients, dv_TN);
}

void adapter_row_squares(Context& context, const AdapterScratch& scratch, ConstTensorView weight,
                         bool in_out, const AdapterWeights& weights) {
  ArenaCursor arena = arena_of(scratch);
  const TensorView squares_N = weights.rows_of.squares();
  const ConstTensorView b_NR = joined_b(context, arena, weights);
  const std::int64_t outputs = weights.outputs, inputs = weights.a_RK.shape[1];
  const std::int64_t most = length_rows(outputs);
  const TensorView sums = arena.take(DType::kF32, {most * inputs}),
                   columns = arena.take(weight.dtype, {in_out ? most * inputs : 0});
  check(arena, scratch);
  for (std::int64_t first = 0; first < outputs; first += most) {
    const std::int64_t count = std::min(most, outputs - first);
    const TensorView squares = squares_N.rows(first, count);
    Gemm product;  // rows of B A, or columns of its transpose
    product.a = in_out ? weights.a_RK : b_NR.rows(first, count);
    product.b = in_out ? b_NR.rows(first, count) : weights.a_RK;
    product.transpose_a = product.transpose_b = in_out ? Transpose::kYes : Transpose::kNo;
    const Shape shape = in_out ? Shape{inputs, count} : Shape{count, inputs};
    const TensorView sum = sums.rows(0, count * inputs).reshape(shape);
    product.c_MN = sum;
    product.use = "adapter_row_squares";
    gemm(context, product);
    scale(context, sum, weights.scale);
    if (!in_out) {
      accumulate(context, sum, weight.rows(first, count));
      const HeadsView rows = heads_of(sum, 0, 1, inputs);
      head_dots(context, squares, rows, rows);
      continue;
    }
    const TensorView part = columns.rows(0, count * inputs).reshape(shape);
    copy_heads(context, heads_of(part, 0, 1, count), heads_of(weight, first, 1, count));
    accumulate(context, sum, part);
    clear(context, squares);
    magnitude_backward(context, {{}, squares, sum, sum, {}});
  }
}

void adapter_gains(Context& context, const AdapterWeights& weights) {
  const AdapterRows& rows = weights.rows_of;
  magnitude_gains(context, rows.gain(), rows.inverse(), {}, rows.squares());
  for (int i = 0; i < weights.count; ++i) {
    const AdapterWeights::Part& part = weights.parts[static_cast<std::size_t>(i)];
    const auto of_part = [&](const TensorView& all) {
      return all.rows(part.first, part.magnitude_N.count());
    };
    magnitude_gains(context, of_part(rows.gain()), of_part(rows.inverse()), part.magnitude_N,
                    of_part(rows.squares()));
  }
}

}  // namespace trireme
