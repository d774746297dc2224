#include "model/adapter.h"

#include <algorithm>

#include "base/math.h"
#include "kernels/elementwise/elementwise.h"

namespace trireme {

namespace {

std::int64_t outputs_of(const Shape& weight, bool in_out) { return weight[in_out ? 1 : 0]; }

/// A projection's first output among those of a product, and how many all projections have.
struct Outputs {
  std::int64_t first = 0, all = 0;
};
Outputs outputs_of(const StoreLayout& layout, const AdapterParams& params, ParamRange product,
                   ParamIndex weight) {
  Outputs outputs;
  for (ParamIndex i = product.first; i <= product.last; ++i) {
    const std::int64_t size = outputs_of(layout.local_shape(i), params.in_out);
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
                          ParamRange product) {
  AdapterWeights weights;
  if (!params.a.given()) return weights;
  weights.a_RK = lease.weight(params.a);
  weights.scale = params.scale;
  for (const AdapterParams::Part& part : params.parts) {
    const Outputs outputs = outputs_of(lease.layout(), params, product, part.weight);
    weights.outputs = outputs.all;
    weights.parts.at(static_cast<std::size_t>(weights.count++)) = {lease.weight(part.b),
                                                                   outputs.first};
  }
  return weights;
}

AdapterGradients gradients_of(const Gradients& sink, const AdapterParams& params,
                              ParamRange product, const AdapterRows& rows) {
  AdapterGradients gradients;
  if (!params.a.given()) return gradients;
  gradients.a_RK = sink.product(params.a);
  gradients.rows_of = rows;
  for (const AdapterParams::Part& part : params.parts) {
    const Outputs outputs = outputs_of(sink.layout(), params, product, part.weight);
    gradients.outputs = outputs.all;
    gradients.parts.at(static_cast<std::size_t>(gradients.count++)) = {
        sink.product({part.b, part.b}), outputs.first};
  }
  return gradients;
}

namespace {

/// Of a product beside which a layer has adapters.
struct Widths {
  std::int64_t ranks = 0, in = 0, out = 0;
};
std::vector<Widths> widths_of(const LayerShape& layer) {
  const AttentionConfig& attention = layer.config.attention;
  const MlpConfig& mlp = layer.config.mlp;
  const AdapterRanks& ranks = layer.config.adapters;
  std::vector<Widths> widths = {{ranks.attention_in, layer.hidden, attention.in_size()},
                                {ranks.attention_out, attention.out_size(), layer.hidden},
                                {ranks.mlp_in, layer.hidden, mlp.up_size()},
                                {ranks.mlp_out, mlp.ffn, layer.hidden}};
  if (const auto& latent = attention.latent) {
    widths.push_back({ranks.q_up, latent->q_rank > 0 ? latent->q_rank : layer.hidden,
                      attention.heads * latent->query_dim()});
    widths.push_back({ranks.kv_up, latent->kv_rank, attention.heads * latent->key_value_dim()});
  }
  return widths;
}

}  // namespace

AdapterScratch lay_out_adapters(ArenaCursor& arena, const LayerShape& layer, bool in_place) {
  std::size_t bytes = 0;
  for (const Widths& of : widths_of(layer)) {
    if (of.ranks == 0) continue;
    ArenaCursor input, weight;
    input.take(layer.compute, {of.out, of.ranks});
    if (!in_place) input.take(layer.compute, {layer.tokens, std::max(of.in, of.out)});
    weight.take(DType::kF32, {of.out, of.ranks});
    weight.take(DType::kF32, {of.out, of.ranks});
    bytes = std::max({bytes, input.bytes(), weight.bytes()});
  }
  if (bytes == 0) return {};
  return {arena.take(DType::kF8E4M3, {static_cast<std::int64_t>(bytes)})};
}

void adapter_forward(Context& context, const AdapterScratch& scratch, TensorView y_TN,
                     ConstTensorView x_TK, const AdapterWeights& weights) {
  ArenaCursor arena = arena_of(scratch);
  const TensorView& us_TR = weights.rows_of.us_TR;
  Gemm down;
  down.c_MN = us_TR;
  down.a = x_TK;
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

void adapter_backward_input(Context& context, const AdapterScratch& scratch, TensorView dx_TK,
                            ConstTensorView dy_TN, const AdapterWeights& weights) {
  ArenaCursor arena = arena_of(scratch);
  const TensorView& du_TR = weights.rows_of.du_TR;
  Gemm up;
  up.c_MN = du_TR;
  up.a = dy_TN;
  up.b = joined_b(context, arena, weights);
  up.use = "adapter_input_gradient";
  gemm(context, up);
  if (weights.scale != 1) scale(context, du_TR, weights.scale);
  Gemm down;
  down.a = du_TR;
  down.b = weights.a_RK;
  down.use = "adapter_input_gradient";
  add_product(context, arena, down, dx_TK);
  check(arena, scratch);
}

void adapter_backward_weight(Context& context, const AdapterScratch& scratch,
                             const AdapterGradients& gradients, ConstTensorView dy_TN,
                             ConstTensorView x_TK) {
  ArenaCursor arena = arena_of(scratch);
  const auto product = [&](TensorView c_MN, Accumulate adds, ConstTensorView a, ConstTensorView b) {
    Gemm args;
    args.c_MN = c_MN;
    args.accumulate = adds;
    args.a = a;
    args.transpose_a = Transpose::kYes;
    args.b = b;
    args.use = "adapter_weight_gradient";
    gemm(context, args);
  };
  const AdapterRows& rows = gradients.rows_of;
  product(gradients.a_RK.gradient, gradients.a_RK.accumulate, rows.du_TR, x_TK);
  const AdapterGradients::Part& only = gradients.parts[0];
  if (gradients.count == 1 && only.b_NR.gradient.shape[0] == gradients.outputs)
    return product(only.b_NR.gradient, only.b_NR.accumulate, dy_TN, rows.us_TR);
  // Of these the blocks of projections are B's gradients.
  const std::int64_t ranks = rows.us_TR.shape[1];
  const TensorView joined = arena.take(DType::kF32, {gradients.outputs, ranks});
  product(joined, Accumulate::kNo, dy_TN, rows.us_TR);
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

}  // namespace trireme
