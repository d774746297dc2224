#include "model/fp8_linear.h"

#include <algorithm>

#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/gemm_quantized.h"
#include "kernels/nf4/nf4.h"
#include "kernels/quantize/quantize.h"
#include "store/quantized_layout.h"

namespace trireme {

QuantizedView rows_of(const QuantizedView& of, std::int64_t first, std::int64_t count) {
  const bool alone = of.rows.block == 1;
  return {of.codes.rows(first, count), alone ? of.scales.rows(first, count) : of.scales,
          ScaleDim(count, of.rows.block), of.columns, of.padded};
}

namespace {

constexpr std::int64_t kBlock = fp8_block(Fp8Recipe::kBlock);

/// Of a matrix that is quantised in parts of either dim.
struct Dims {
  ScaleDim rows, columns;
};

QuantizedGemm product_with(const LinearEpilogue& epilogue) {
  QuantizedGemm args;
  args.epilogue = epilogue.kind;
  args.operand = epilogue.operand;
  args.saved = epilogue.saved;
  args.then = epilogue.then;
  args.amax_P = epilogue.amax_P;
  return args;
}

}  // namespace

/// Operands of one product, one after the other in the scratch memory.
class Fp8Products::Operands {
 public:
  explicit Operands(const Fp8Products& of) : Operands(of, ArenaCursor(of.scratch.memory.data)) {}
  /// In what is left there.
  Operands(const Fp8Products& of, const ArenaCursor& arena) : of_(of), arena_(arena) {}
  Operands(const Operands&) = delete;
  Operands& operator=(const Operands&) = delete;

  /// x and, where what made it has left them, its largest magnitudes on this rank or on all.
  struct Found {
    ConstTensorView x_TC;
    TensorView amax_P = {};
  };
  /// x as it is multiplied along its columns.
  QuantizedView rows(const Found& x, const ScaleDim& columns, const TensorCut& cut, DType format) {
    const Dims dims = dims_of_rows(x.x_TC.shape[0], columns);
    const bool joined = cut_crosses_blocks(cut, of_.tensor.extent(), dims.columns.block);
    return quantized(x, dims, Transpose::kNo, format, joined);
  }
  /// Both of these; x^T stands first.
  BothOrders take_both(std::int64_t tokens, const ScaleDim& columns, DType format) {
    const Dims along = dims_of_rows(tokens, columns), across = dims_of_columns(tokens, columns);
    const QuantizedView turned = take(across.columns, across.rows, format);
    return {take(along.rows, along.columns, format), turned};
  }
  BothOrders rows_and_columns(const Found& x, const ScaleDim& columns, const TensorCut& cut,
                              DType format) {
    const BothOrders both = take_both(x.x_TC.shape[0], columns, format);
    QuantizeBoth args{both.along, both.across, x.x_TC};
    const Dims along{both.along.rows, both.along.columns};
    args.along_amax =
        maxima(x, along, cut_crosses_blocks(cut, of_.tensor.extent(), along.columns.block));
    if (!blocks()) args.across_amax = args.along_amax;
    quantize_both(of_.context, args);
    return both;
  }
  /// In blocks that lie in this rank's columns, as what makes x leaves them.
  QuantizedView take_rows(std::int64_t tokens, const ScaleDim& columns) {
    const Dims dims = dims_of_rows(tokens, columns);
    return take(dims.rows, dims.columns, DType::kF8E4M3);
  }
  QuantizedView take_columns(std::int64_t tokens, const ScaleDim& columns) {
    const Dims dims = dims_of_columns(tokens, columns);
    return take(dims.columns, dims.rows, DType::kF8E4M3);
  }
  /// The same from residual rows, of which each rank quantises its own, if its norm has not.
  QuantizedView gathered_rows(const NormedRows& n, const ScaleDim& columns) {
    const Dims dims = dims_of_rows(n.n_TC.shape[0], columns);
    const bool made = n.quantized.codes.given();
    const QuantizedView out =
        made ? n.quantized.codes : take(dims.rows, dims.columns, DType::kF8E4M3);
    const TensorAxis::Rows own = of_.tensor.residual_range(n.n_TC.shape[0]);
    const bool gathers = own.count < n.n_TC.shape[0];
    if (!made) {
      Quantize args;
      args.out = rows_of(out, own.first, own.count);
      args.x = of_.tensor.residual_rows(n.n_TC);
      args.amax =
          maxima({args.x, n.quantized.amax_P}, {args.out.rows, dims.columns}, gathers && !blocks());
      quantize(of_.context, args);
    }
    if (!gathers) return out;
    of_.tensor.all_gather(out.codes);
    if (blocks()) of_.tensor.all_gather(out.scales);
    return out;
  }
  /// x^T, which is multiplied along x's rows.
  QuantizedView columns(const Found& x, const ScaleDim& columns, const TensorCut& cut,
                        DType format) {
    const Dims dims = dims_of_columns(x.x_TC.shape[0], columns);
    const bool joined = !blocks() && cut_crosses_blocks(cut, of_.tensor.extent(), 0);
    return quantized(x, dims, Transpose::kYes, format, joined);
  }
  /// A weight, or its transpose, as it is multiplied along the columns of that.
  ConstQuantizedView weight(const LinearWeights& weights, Transpose transpose) {
    if (transpose == Transpose::kYes) return weights.lease->turned(of_.context, weights.range);
    ConstQuantizedView weight = weights.lease->quantized(weights.range);
    weight.padded = weight.columns.aligned();
    if (weight.padded) return weight;
    const QuantizedView out = take(weight.rows, weight.columns, weight.format());
    reorder(of_.context, out, weight, Transpose::kNo);
    return out;
  }

  [[nodiscard]] const ArenaCursor& arena() const { return arena_; }

 private:
  [[nodiscard]] bool blocks() const { return of_.precision.recipe == Fp8Recipe::kBlock; }
  [[nodiscard]] Dims dims_of_rows(std::int64_t tokens, const ScaleDim& columns) const {
    return {{tokens, blocks() ? 1 : 0}, columns.with_block(fp8_block(of_.precision.recipe))};
  }
  [[nodiscard]] Dims dims_of_columns(std::int64_t tokens, const ScaleDim& columns) const {
    return {{tokens, blocks() ? kBlock : 0}, columns.with_block(blocks() ? 1 : 0)};
  }
  QuantizedView take(const ScaleDim& rows, const ScaleDim& columns, DType format) {
    const TensorView codes = arena_.take(format, codes_shape(rows, columns, true));
    const TensorView scales = arena_.take(DType::kF32, scales_shape(rows, columns));
    check();
    return {codes, scales, rows, columns, true};
  }
  void check() const {
    expect(arena_.bytes() <= of_.scratch.memory.bytes(), "fp8 operands of {} bytes in {}",
           arena_.bytes(), of_.scratch.memory.bytes());
  }

  QuantizedView quantized(const Found& x, const Dims& dims, Transpose transpose, DType format,
                          bool joined) {
    const bool turned = transpose == Transpose::kYes;
    Quantize args;
    args.out = take(turned ? dims.columns : dims.rows, turned ? dims.rows : dims.columns, format);
    args.x = x.x_TC;
    args.transpose = transpose;
    args.amax = maxima(x, dims, joined);
    quantize(of_.context, args);
    return args.out;
  }

  /// Not given where `quantize` finds them.
  ConstTensorView maxima(const Found& x, const Dims& dims, bool joined) {
    if (joined) return joined_maxima(x, dims);
    return x.amax_P.given() ? x.amax_P.reshape({1, x.amax_P.count()}) : ConstTensorView();
  }

  /// The largest magnitudes of blocks that several tensor-parallel ranks have parts of: columns, or
  /// residual rows. Those that are found become those of all ranks.
  TensorView joined_maxima(const Found& x, const Dims& dims) {
    const std::int64_t rows = dims.rows.blocks(), all = dims.columns.all_blocks();
    const std::int64_t ranks = of_.tensor.extent();
    const Shape shape{rows, dims.columns.blocks()};
    const bool found = x.amax_P.given();
    const TensorView amax = found ? x.amax_P.reshape(shape) : arena_.take(DType::kI32, shape);
    const TensorView parts = arena_.take(DType::kI32, {ranks, rows * all});
    check();
    if (!found) {
      clear(of_.context, amax);
      absolute_max(of_.context, amax, x.x_TC, dims.rows, dims.columns);
    }
    const TensorView mine = parts.rows(of_.tensor.rank().index, 1).reshape({rows, all});
    clear(of_.context, mine);
    const auto each_part = [&](const auto& f) {
      dims.columns.each_span([&](const ScaleDim::Span& span) {
        f(heads_of(mine, span.global, span.count, 1), heads_of(amax, span.local, span.count, 1));
      });
    };
    each_part([&](const HeadsView& whole, const HeadsView& here) {
      copy_heads(of_.context, whole, here);
    });
    of_.tensor.gather_parts(parts);
    join_maxima(of_.context, mine.reshape({rows * all}), parts);
    each_part([&](const HeadsView& whole, const HeadsView& here) {
      copy_heads(of_.context, here, whole);
    });
    return amax;
  }

  const Fp8Products& of_;
  ArenaCursor arena_;
};

namespace {

/// Behind an operand, if it stands next in the scratch memory.
ArenaCursor behind(const ArenaCursor& arena, const ConstQuantizedView& view) {
  if (!view.given()) return arena;
  ArenaCursor next = arena;
  const bool here = next.take(view.codes.dtype, view.codes.shape).data == view.codes.data;
  next.take(view.scales.dtype, view.scales.shape);
  return here ? next : arena;
}
ArenaCursor behind(const ArenaCursor& arena, const BothOrders& both) {
  return behind(behind(arena, both.across), both.along);
}

std::int64_t operand_bytes(const Fp8Widths& widths) {
  // Parts begin in the middle of a block at most, and end there.
  const auto padded = [](std::int64_t columns) {
    return round_up(columns, kBlock) + ScaleDim::kPartsMax * 2 * kBlock;
  };
  const std::int64_t in = padded(widths.in), out = padded(widths.out),
                     tokens = round_up(widths.tokens, kBlock);
  const std::int64_t weight = in * out, dy = (widths.together ? 2 : 1) * tokens * out;
  const std::int64_t codes = std::max({tokens * in + weight, dy + weight, (in + out) * tokens});
  // A scale for 128 codes, and a few where rows have blocks of their own.
  std::int64_t scales = codes / kBlock + in + out + tokens;
  // Maxima of a tensor whose columns other ranks have the rest of.
  if (widths.tensor_extent > 1) {
    const std::int64_t maxima =
        tokens * (std::max(in, out) / kBlock + ScaleDim::kPartsMax) * widths.tensor_extent;
    scales += maxima * (widths.tensor_extent + 1);
  }
  constexpr std::int64_t kAlignment = 32 * 64;
  return codes + 4 * scales + kAlignment + fp8_gradient_bytes(widths.tokens, widths.kept);
}

}  // namespace

std::int64_t fp8_gradient_bytes(std::int64_t tokens, std::int64_t columns) {
  if (columns == 0) return 0;
  const std::int64_t codes =
      2 * round_up(tokens, kBlock) * (columns + ScaleDim::kPartsMax * kBlock);
  return codes + 4 * (codes / kBlock + columns + tokens) + 4 * 64;
}

Fp8Scratch lay_out_fp8(ArenaCursor& arena, const std::vector<Fp8Widths>& linears,
                       std::int64_t others) {
  std::int64_t bytes = others;
  for (const Fp8Widths& widths : linears) bytes = std::max(bytes, operand_bytes(widths));
  return {arena.take(DType::kF8E4M3, {bytes})};
}

std::int64_t fp8_joined_rows(Fp8Recipe recipe, const ScaleDim& columns, const TensorCut& cut,
                             std::int64_t tokens, int tensor_extent) {
  const bool blocks = recipe == Fp8Recipe::kBlock;
  const ScaleDim along = columns.with_block(fp8_block(recipe));
  if (!cut_crosses_blocks(cut, tensor_extent, along.block)) return 0;
  return (blocks ? tokens : 1) * along.all_blocks();
}

std::int64_t fp8_joined_columns(Fp8Recipe recipe, const ScaleDim& columns, const TensorCut& cut,
                                int tensor_extent) {
  if (recipe == Fp8Recipe::kBlock || !cut_crosses_blocks(cut, tensor_extent, 0)) return 0;
  return columns.with_block(0).all_blocks();
}

Fp8Gathered fp8_gathered(Fp8Recipe recipe, const ScaleDim& columns, std::int64_t tokens) {
  const bool blocks = recipe == Fp8Recipe::kBlock;
  const ScaleDim along = columns.with_block(fp8_block(recipe));
  const std::int64_t codes = tokens * along.padded_size();
  if (!blocks) return {codes, 0, 4 * along.blocks()};
  return {codes, 4 * tokens * along.blocks(), 0};
}

namespace {

/// Rows of `weight` of as many parameters at a time as their blocks lie behind each other.
void widen_nf4(Context& context, TensorView weight, const LinearWeights& weights) {
  const StoreLayout& layout = weights.lease->layout();
  std::int64_t row = 0;
  for (ParamIndex first = weights.range.first; first <= weights.range.last;) {
    ParamIndex last = first;
    while (last < weights.range.last && layout.local_shape(last).count() % kNf4Block == 0) ++last;
    const ConstNf4View codes = weights.lease->nf4({first, last});
    nf4_dequantize(context, weight.rows(row, codes.shape[0]), codes);
    row += codes.shape[0];
    first = last + 1;
  }
}

}  // namespace

LinearWeights widen(Context& context, const LinearWeights& weights, TensorView memory) {
  if (weights.fp8 == nullptr && !weights.nf4) return weights;
  LinearWeights widened = weights;
  widened.fp8 = nullptr;
  widened.nf4 = false;
  const Shape shape = weights.lease->layout().fused_shape(weights.range);
  const TensorView weight = memory.rows(0, shape.count()).reshape(shape);
  if (weights.nf4)
    widen_nf4(context, weight, weights);
  else
    dequantize(context, weight, weights.lease->quantized(weights.range));
  widened.weight = weight;
  return widened;
}

void Fp8Products::forward(TensorView y_TN, ConstTensorView x_TK, const LinearWeights& weights,
                          const LinearEpilogue& epilogue) const {
  Operands operands(*this);
  const Fp8Columns& columns = *weights.fp8;
  const ConstQuantizedView x =
      operands.rows({x_TK, weights.x_amax_1}, columns.in, columns.in_cut, DType::kF8E4M3);
  forward(y_TN, x, operands, weights, epilogue);
}

void Fp8Products::forward_gathered(TensorView y_TN, const NormedRows& n,
                                   const LinearWeights& weights,
                                   const LinearEpilogue& epilogue) const {
  Operands operands(*this);
  forward(y_TN, operands.gathered_rows(n, weights.fp8->in), operands, weights, epilogue);
}

bool Fp8Products::begins_with_block(const ScaleDim& columns) const {
  return precision.recipe == Fp8Recipe::kBlock && columns.part_count == 1 &&
         ScaleDim::phase(columns.parts[0], kBlock) == 0;
}

NormedRows Fp8Products::normed_rows(TensorView n_TC, const LinearWeights& weights) const {
  NormedRows n{n_TC};
  const ScaleDim rows(n_TC.shape[0], 1), columns = weights.fp8->in.with_block(kBlock);
  n.quantized.amax_P = weights.x_amax_1;
  if (!begins_with_block(columns)) return n;
  ArenaCursor arena(n_TC.data);
  const TensorView codes = arena.take(DType::kF8E4M3, codes_shape(rows, columns, true));
  const TensorView scales = arena.take(DType::kF32, scales_shape(rows, columns));
  if (arena.bytes() <= n_TC.bytes()) n.quantized.codes = {codes, scales, rows, columns, true};
  return n;
}

QuantizedView Fp8Products::input_codes(std::int64_t tokens, const LinearWeights& weights) const {
  const Fp8Columns& columns = *weights.fp8;
  if (!begins_with_block(columns.in) || cut_crosses_blocks(columns.in_cut, tensor.extent(), kBlock))
    return {};
  return Operands(*this).take_rows(tokens, columns.in);
}

void Fp8Products::forward(TensorView y_TN, const ConstQuantizedView& x,
                          const LinearWeights& weights, const LinearEpilogue& epilogue) const {
  Operands operands(*this, behind(ArenaCursor(scratch.memory.data), x));
  forward(y_TN, x, operands, weights, epilogue);
}

void Fp8Products::forward(TensorView y_TN, const ConstQuantizedView& x, Operands& operands,
                          const LinearWeights& weights, const LinearEpilogue& epilogue) const {
  QuantizedGemm args = product_with(epilogue);
  args.c_MN = y_TN;
  args.a = x;
  args.b = operands.weight(weights, weights.in_out ? Transpose::kYes : Transpose::kNo);
  args.precise_sums = precision.recipe == Fp8Recipe::kBlock;
  args.bias_N = weights.bias;
  args.use = "linear_forward";
  gemm_quantized(context, args);
}

void Fp8Products::backward_input(TensorView dx_TK, const ConstQuantizedView& dy, Operands& operands,
                                 const LinearWeights& weights,
                                 const LinearEpilogue& epilogue) const {
  QuantizedGemm args = product_with(epilogue);
  args.c_MN = dx_TK;
  args.a = dy;
  args.b = operands.weight(weights, weights.in_out ? Transpose::kNo : Transpose::kYes);
  args.use = "linear_input_gradient";
  gemm_quantized(context, args);
}

void Fp8Products::backward_input(TensorView dx_TK, ConstTensorView dy_TN,
                                 const LinearWeights& weights,
                                 const LinearEpilogue& epilogue) const {
  Operands operands(*this);
  const Fp8Columns& columns = *weights.fp8;
  backward_input(
      dx_TK,
      operands.rows({dy_TN, weights.dy_amax_P}, columns.out, columns.out_cut, precision.gradients),
      operands, weights, epilogue);
}

Fp8Products::Turned Fp8Products::backward_input_and_turn(TensorView dx_TK, const Rows& dy,
                                                         const LinearWeights& weights,
                                                         const LinearEpilogue& epilogue,
                                                         const LinearGradients& gradients) const {
  const ArenaCursor begin = behind(ArenaCursor(scratch.memory.data), dy.kept);
  if (!gradients.weight.gradient.given()) {
    backward_input(dx_TK, dy.dy_TN, weights, epilogue);
    return {{}, begin};
  }
  Operands operands(*this, begin);
  const Fp8Columns& columns = *weights.fp8;
  const BothOrders both = operands.rows_and_columns({dy.dy_TN, weights.dy_amax_P}, columns.out,
                                                    columns.out_cut, precision.gradients);
  backward_input(dx_TK, both.along, operands, weights, epilogue);
  return {both.across, behind(begin, both.across)};
}

BothOrders Fp8Products::gradient_codes(std::int64_t tokens, const LinearGradients& gradients,
                                       TensorView apart) const {
  if (precision.recipe != Fp8Recipe::kBlock || tensor.extent() > 1 || gradients.adapter.given() ||
      !gradients.weight.gradient.given())
    return {};
  const Fp8Products there{context, tensor, precision, {apart.given() ? apart : scratch.memory}};
  return Operands(there).take_both(tokens, gradients.fp8->out, precision.gradients);
}

void Fp8Products::backward_input(TensorView dx_TK, const BothOrders& dy,
                                 const LinearWeights& weights) const {
  Operands operands(*this, behind(ArenaCursor(scratch.memory.data), dy));
  backward_input(dx_TK, dy.along, operands, weights, {});
}

void Fp8Products::backward_weight(const LinearGradients& gradients, const BothOrders& dy,
                                  ConstTensorView x_TK) const {
  const ArenaCursor begin(scratch.memory.data);
  backward_weight(gradients, Turned{dy.across, behind(begin, dy.across)}, x_TK);
  add_bias(gradients, dy.rows_TN);
}

QuantizedView Fp8Products::turned_input(const Turned& turned, std::int64_t tokens,
                                        const LinearGradients& gradients) const {
  return Operands(*this, turned.behind).take_columns(tokens, gradients.fp8->in);
}

void Fp8Products::backward_weight(const LinearGradients& gradients, const Turned& turned,
                                  ConstTensorView x_TK) const {
  if (!turned.dy.given()) return;
  Operands operands(*this, turned.behind);
  const ConstQuantizedView x = operands.columns({x_TK, gradients.x_amax_1}, gradients.fp8->in,
                                                gradients.fp8->in_cut, DType::kF8E4M3);
  backward_weight(gradients, turned.dy, x);
}

void Fp8Products::backward_weight(const LinearGradients& gradients, const ConstQuantizedView& dy,
                                  const ConstQuantizedView& x) const {
  QuantizedGemm args;
  args.c_MN = gradients.weight.gradient;
  args.a = gradients.in_out ? x : dy;
  args.b = gradients.in_out ? dy : x;
  args.accumulate = gradients.weight.accumulate;
  args.use = "linear_weight_gradient";
  gemm_quantized(context, args);
}

void Fp8Products::add_bias(const LinearGradients& gradients, ConstTensorView dy_TN) const {
  if (gradients.bias.given()) column_sum(context, gradients.bias, dy_TN);
}

void Fp8Products::backward_weight(const LinearGradients& gradients, ConstTensorView dy_TN,
                                  ConstTensorView x_TK) const {
  if (gradients.weight.gradient.given()) {
    Operands operands(*this);
    const Fp8Columns& columns = *gradients.fp8;
    const ConstQuantizedView dy = operands.columns({dy_TN, gradients.dy_amax_P}, columns.out,
                                                   columns.out_cut, precision.gradients);
    backward_weight(gradients, {dy, operands.arena()}, x_TK);
  }
  add_bias(gradients, dy_TN);
}

}  // namespace trireme
