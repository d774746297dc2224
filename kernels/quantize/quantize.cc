#include "kernels/quantize/quantize.h"

#include <bit>
#include <string>

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/gpu_scratch.h"
#include "kernels/common/op_work.h"
#include "kernels/quantize/quantize_internal.h"

namespace trireme {
namespace {

using quantize_internal::check_view;
using quantize_internal::dim_of;

const QuantizeKernels& table_of(const Context& context) {
  return choose_table("quantize", context, quantize_cpu, &GpuKernels::quantize);
}

void check_dim(const char* op, const ScaleDim& dim) {
  expect(dim.block >= 0 && (dim.block == 0 || ScaleDim::kAlignment % dim.block == 0),
         "{}: blocks of {} do not divide {}", op, dim.block, ScaleDim::kAlignment);
  for (int i = 0; i < dim.part_count; ++i) {
    const ScaleDim::Part& part = dim.parts[static_cast<std::size_t>(i)];
    expect(part.size >= 0 && part.offset >= 0, "{}: a part of {} from {}", op, part.size,
           part.offset);
  }
}

/// [R, C] of the dims, f32 or bf16.
void check_x(const ArgumentChecker& check, const ConstTensorView& x, const ScaleDim& rows,
             const ScaleDim& columns) {
  check.floating("x", x.dtype);
  check.tensor("x", x, x.dtype, {rows.size(), columns.size()});
}

std::size_t blocks_of(const ScaleDim& rows, const ScaleDim& columns) {
  return static_cast<std::size_t>(rows.blocks() * columns.blocks());
}

/// Maxima of each thread's own rows, where a block is shared out (CPU).
std::size_t partial_count(const Context& context, const ScaleDim& rows, const ScaleDim& columns) {
  const bool shared = !context.on_gpu() && rows.block == 0 && context.threads() > 1;
  return shared ? static_cast<std::size_t>(context.threads()) * blocks_of(rows, columns) : 0;
}

void check_exchanged(const char* op, const ScaleDim& to_rows, const ScaleDim& to_columns,
                     const ConstQuantizedView& from, Transpose transpose) {
  const bool across = transpose == Transpose::kYes;
  expect(to_rows == (across ? from.columns : from.rows) &&
             to_columns == (across ? from.rows : from.columns),
         "{}: `to` has other rows, columns or blocks than `from`", op);
}

}  // namespace

QuantizedDim quantize_internal::dim_of(const ScaleDim& dim, bool padded) {
  QuantizedDim out{};
  out.whole = dim.block == 0;
  out.block = out.whole ? std::int64_t{1} << 62 : dim.block;
  out.padded = padded;
  const auto in_tile = static_cast<std::uint64_t>(out.whole ? ScaleDim::kAlignment : dim.block);
  out.tile_shift = std::countr_zero(in_tile);
  std::int64_t at = 0, tiles = 0;
  for (int i = 0; i < dim.part_count; ++i) {
    const ScaleDim::Part& part = dim.parts[static_cast<std::size_t>(i)];
    if (part.size == 0) continue;
    const std::int64_t lead = ScaleDim::phase(part, ScaleDim::kAlignment);
    out.parts[out.part_count++] = {.begin = out.size,
                                   .size = part.size,
                                   .first_block = out.blocks,
                                   .phase = out.whole ? 0 : ScaleDim::phase(part, out.block),
                                   .lead = lead,
                                   .at = at + (padded ? lead : 0),
                                   .first_tile = tiles};
    tiles += ceil_div(lead + part.size, ScaleDim::kAlignment);
    out.size += part.size;
    out.blocks += dim.blocks_of(part);
    at += padded ? ScaleDim::padded_size_of(part) : part.size;
  }
  out.width = at;
  out.tiles = tiles;
  return out;
}

void quantize_internal::check_view(const char* op, const char* name,
                                   const ConstQuantizedView& view) {
  check_dim(op, view.rows);
  check_dim(op, view.columns);
  const std::string codes = std::string(name) + ".codes", scales = std::string(name) + ".scales";
  const ArgumentChecker check(op);
  check.that(is_fp8(view.format()), codes.c_str(), "expected e4m3 or e5m2");
  check.tensor(codes.c_str(), view.codes, view.format(),
               codes_shape(view.rows, view.columns, view.padded));
  check.tensor(scales.c_str(), view.scales, DType::kF32, scales_shape(view.rows, view.columns));
}

void quantize_internal::check_output(const char* op, const QuantizedOutput& out,
                                     const OutputOf& of) {
  const ArgumentChecker check(op);
  check.optional("amax", out.amax_P, DType::kI32, {of.parts});
  if (!out.codes.given()) return;
  check_view(op, "codes", out.codes);
  check.that(of.y_type == DType::kBF16, "codes", "are those of bf16 rows");
  check.that(out.codes.format() == DType::kF8E4M3, "codes", "expected e4m3");
  check.that(out.codes.padded && of.columns % 8 == 0, "codes",
             "are not padded, or columns are no multiple of 8");
  const auto is_whole = [](const ScaleDim& dim, std::int64_t size, std::int64_t block) {
    return dim.part_count == 1 && dim.size() == size && dim.block == block &&
           ScaleDim::phase(dim.parts[0], ScaleDim::kAlignment) == 0;
  };
  check.that(out.codes.rows.block == 1 && out.codes.rows.size() == of.rows &&
                 is_whole(out.codes.columns, of.columns, RowCodes::kBlock),
             "codes", "expected blocks of 1 x 128 of all rows and columns");
}

RowCodes quantize_internal::row_codes(const QuantizedOutput& out) {
  return {reinterpret_cast<std::uint8_t*>(out.codes.codes.data), out.codes.scales.as<float>(),
          out.codes.given() ? out.codes.columns.padded_size() : 0,
          reinterpret_cast<std::int32_t*>(out.amax_P.data)};
}

void absolute_max(Context& context, TensorView amax, ConstTensorView x, const ScaleDim& rows,
                  const ScaleDim& columns) {
  const OpSpan span(context.op_trace(), "absolute_max", {0, bytes_of(x, amax, amax)});
  const ArgumentChecker check("absolute_max");
  check_dim("absolute_max", rows);
  check_dim("absolute_max", columns);
  check_x(check, x, rows, columns);
  check.tensor("amax", amax, DType::kI32, scales_shape(rows, columns));
  check.disjoint("amax", amax, "x", x);
  if (x.count() == 0) return;
  const std::size_t partial = partial_count(context, rows, columns) * sizeof(std::int32_t);
  table_of(context).absolute_max(
      {context.exec(), amax.as<std::int32_t>(), x.data, dim_of(rows, false), dim_of(columns, false),
       partial == 0 ? nullptr : reinterpret_cast<std::int32_t*>(context.scratch(partial)),
       x.dtype});
}

void join_maxima(Context& context, TensorView most_N, ConstTensorView others_PN) {
  const OpSpan span(context.op_trace(), "join_maxima", {0, bytes_of(others_PN, most_N, most_N)});
  const ArgumentChecker check("join_maxima");
  check.rank("most", most_N, 1);
  check.rank("others", others_PN, 2);
  check.tensor("most", most_N, DType::kI32, {most_N.count()});
  check.tensor("others", others_PN, DType::kI32, {others_PN.shape[0], most_N.count()});
  if (others_PN.count() == 0) return;
  table_of(context).join_maxima({context.exec(), most_N.as<std::int32_t>(),
                                 others_PN.as<std::int32_t>(), most_N.count(), others_PN.shape[0]});
}

namespace {

/// Of x's own rows and columns.
struct XDims {
  const ScaleDim &rows, &columns;
};
XDims dims_of_x(const Quantize& args) {
  const bool across = args.transpose == Transpose::kYes;
  return {across ? args.out.columns : args.out.rows, across ? args.out.rows : args.out.columns};
}

void check_quantize(const char* op, const char* name, const Quantize& args) {
  const QuantizedView& out = args.out;
  const ArgumentChecker check(op);
  const XDims dims = dims_of_x(args);
  QuantizedView checked = out;
  if (args.amax.given() && !out.scales.given())  // the codes alone
    checked.scales = {out.codes.data, DType::kF32, scales_shape(out.rows, out.columns)};
  check_view(op, name, checked);
  check_x(check, args.x, dims.rows, dims.columns);
  check.optional("amax", args.amax, DType::kI32, scales_shape(dims.rows, dims.columns));
  for (const ConstTensorView& written : {ConstTensorView(out.codes), ConstTensorView(out.scales)}) {
    check.disjoint(name, written, "x", args.x);
    check.disjoint(name, written, "amax", args.amax);
  }
  check.disjoint((std::string(name) + ".codes").c_str(), out.codes,
                 (std::string(name) + ".scales").c_str(), out.scales);
}

/// Words of scratch memory: factors (CPU), maxima that are found, those of each thread (CPU).
std::size_t scratch_words(const Context& context, const Quantize& args) {
  const XDims dims = dims_of_x(args);
  const std::size_t blocks = blocks_of(dims.rows, dims.columns);
  const bool find = !args.amax.given();
  if (!context.on_gpu())
    return blocks * (find ? 2 : 1) + (find ? partial_count(context, dims.rows, dims.columns) : 0);
  return find && !gpu_scratch::quantizes_at_once(dims.rows.block, dims.columns.block) ? blocks : 0;
}

QuantizeArgs with_scratch(const Context& context, const Quantize& args, std::byte* scratch) {
  const QuantizedView& out = args.out;
  const XDims dims = dims_of_x(args);
  const std::size_t blocks = blocks_of(dims.rows, dims.columns);
  const bool find = !args.amax.given(), across = args.transpose == Transpose::kYes;
  auto* const factors = reinterpret_cast<float*>(scratch);
  auto* const found =
      reinterpret_cast<std::int32_t*>(context.on_gpu() ? factors : factors + blocks);
  // Only maxima that are found here are written.
  auto* given = const_cast<std::int32_t*>(find ? nullptr : args.amax.as<std::int32_t>());
  return {context.exec(),
          out.codes.data,
          out.scales.given() ? out.scales.as<float>() : nullptr,
          args.x.data,
          find ? found : given,
          factors,
          found + blocks,
          dim_of(dims.rows, across && out.padded),
          dim_of(dims.columns, !across && out.padded),
          find,
          across,
          args.x.dtype,
          out.format()};
}

std::byte* take_words(Context& context, std::size_t words) {
  return words == 0 ? nullptr
                    : reinterpret_cast<std::byte*>(context.scratch(words * sizeof(float)));
}

}  // namespace

void quantize_internal::check_made(const char* op, const MadeCodes& of, std::int64_t rows,
                                   std::int64_t columns) {
  check_view(op, of.name, of.out);
  const bool across = of.transpose == Transpose::kYes;
  ArgumentChecker(op).that(of.out.padded && of.out.rows.block == 1 &&
                               of.out.columns.block == RowCodes::kBlock &&
                               of.out.rows.size() == (across ? columns : rows) &&
                               of.out.columns.size() == (across ? rows : columns),
                           of.name, "expected padded codes in blocks of 1 x 128 of all values");
}

namespace {

Quantize made(const quantize_internal::MadeCodes& of, DType type) {
  Quantize args{of.out, {}, {}, of.transpose};
  const XDims dims = dims_of_x(args);
  args.x = {nullptr, type, {dims.rows.size(), dims.columns.size()}};
  return args;
}

}  // namespace

std::size_t quantize_internal::made_words(const Context& context, const MadeCodes& of) {
  return scratch_words(context, made(of, DType::kBF16));
}

QuantizeArgs quantize_internal::args_of_made(const Context& context, DType type,
                                             const MadeCodes& of, float* words) {
  return with_scratch(context, made(of, type), reinterpret_cast<std::byte*>(words));
}

void quantize_internal::quantize_made(Context& context, const MadeCodes& of, ConstTensorView x,
                                      float* words) {
  QuantizeArgs args = args_of_made(context, x.dtype, of, words);
  args.x = x.data;
  table_of(context).quantize(args);
}

void quantize(Context& context, const Quantize& args) {
  const OpSpan span(context.op_trace(), "quantize",
                    {0, bytes_of(args.x, args.amax, args.out.codes, args.out.scales)});
  check_quantize("quantize", "out", args);
  if (args.x.count() == 0) return;
  std::byte* const scratch = take_words(context, scratch_words(context, args));
  table_of(context).quantize(with_scratch(context, args, scratch));
}

void quantize_both(Context& context, const QuantizeBoth& args) {
  const QuantizedView &along = args.along, &across = args.across;
  const OpSpan span(context.op_trace(), "quantize_both",
                    {0, bytes_of(args.x, args.along_amax, args.across_amax, along.codes,
                                 along.scales, across.codes, across.scales)});
  const Quantize forms[] = {{along, args.x, args.along_amax, Transpose::kNo},
                            {across, args.x, args.across_amax, Transpose::kYes}};
  const char* const op = "quantize_both";
  check_quantize(op, "along", forms[0]);
  check_quantize(op, "across", forms[1]);
  const ArgumentChecker check(op);
  check.that(across.format() == along.format(), "across", "has another type than along");
  const auto with_block_of = [](const ScaleDim& dim, const ScaleDim& of) {
    return dim.with_block(of.block) == of;
  };
  check.that(with_block_of(along.rows, across.columns) && with_block_of(along.columns, across.rows),
             "across", "has other parts than along");
  for (const ConstTensorView& one : {ConstTensorView(along.codes), ConstTensorView(along.scales)}) {
    check.disjoint("along", one, "across.codes", across.codes);
    check.disjoint("along", one, "across.scales", across.scales);
  }
  if (args.x.count() == 0) return;
  // What is found apart from codes is found once, where the blocks are the same.
  const bool once = context.on_gpu() && !args.along_amax.given() && !args.across_amax.given() &&
                    along.rows == across.columns && along.columns == across.rows;
  const std::size_t first = scratch_words(context, forms[0]);
  const std::size_t second = once ? 0 : first;
  std::byte* const scratch =
      take_words(context, second + (once ? first : scratch_words(context, forms[1])));
  table_of(context).quantize_both(
      {with_scratch(context, forms[0], scratch),
       with_scratch(context, forms[1],
                    scratch == nullptr ? scratch : scratch + second * sizeof(float))});
}

void leave_quantized(Context& context, const QuantizedOutput& out, ConstTensorView y_RC) {
  if (out.codes.given()) quantize(context, {out.codes, y_RC});
  if (!out.amax_P.given()) return;
  const std::int64_t parts = out.amax_P.count();
  ScaleDim columns;
  for (std::int64_t p = 0; p < parts; ++p) columns.add({y_RC.shape[1] / parts});
  absolute_max(context, out.amax_P.reshape({1, parts}), y_RC, ScaleDim(y_RC.shape[0], 0), columns);
}

void scales_of(Context& context, TensorView scales, ConstTensorView amax, DType format) {
  const OpSpan span(context.op_trace(), "scales_of", {0, bytes_of(scales, amax)});
  const ArgumentChecker check("scales_of");
  expect(is_fp8(format), "scales_of: {} has no scales", name_of(format));
  check.tensor("amax", amax, DType::kI32, amax.shape);
  check.tensor("scales", scales, DType::kF32, amax.shape);
  check.same_or_disjoint("scales", {scales.data, DType::kI32, scales.shape}, "amax", amax);
  if (amax.count() == 0) return;
  table_of(context).scales(
      {context.exec(), scales.as<float>(), nullptr, amax.as<std::int32_t>(), amax.count(), format});
}

void dequantize(Context& context, TensorView x, const ConstQuantizedView& from) {
  const OpSpan span(context.op_trace(), "dequantize", {0, bytes_of(x, from.codes, from.scales)});
  const ArgumentChecker check("dequantize");
  check_view("dequantize", "from", from);
  check_x(check, x, from.rows, from.columns);
  check.disjoint("x", x, "from.codes", from.codes);
  check.disjoint("x", x, "from.scales", from.scales);
  if (x.count() == 0) return;
  table_of(context).dequantize({context.exec(), x.data, from.codes.data, from.scales.as<float>(),
                                dim_of(from.rows, false), dim_of(from.columns, from.padded),
                                x.dtype, from.format()});
}

void reorder(Context& context, const QuantizedView& to, const ConstQuantizedView& from,
             Transpose transpose) {
  const OpSpan span(context.op_trace(), "reorder",
                    {0, bytes_of(to.codes, to.scales, from.codes, from.scales)});
  const ArgumentChecker check("reorder");
  check_view("reorder", "from", from);
  check_view("reorder", "to", to);
  check_exchanged("reorder", to.rows, to.columns, from, transpose);
  check.that(to.format() == from.format(), "to", "has another type than from");
  for (const ConstTensorView& written : {ConstTensorView(to.codes), ConstTensorView(to.scales)}) {
    check.disjoint("to", written, "from.codes", from.codes);
    check.disjoint("to", written, "from.scales", from.scales);
  }
  check.disjoint("to.codes", to.codes, "to.scales", to.scales);
  if (from.rows.size() == 0 || from.columns.size() == 0) return;
  const bool across = transpose == Transpose::kYes;
  table_of(context).reorder(
      {context.exec(), reinterpret_cast<std::uint8_t*>(to.codes.data), to.scales.as<float>(),
       reinterpret_cast<const std::uint8_t*>(from.codes.data), from.scales.as<float>(),
       dim_of(from.rows, false), dim_of(from.columns, from.padded), dim_of(to.columns, to.padded),
       across});
}

}  // namespace trireme
