#include "kernels/quantize/quantize_segments.h"

#include <cstring>

#include "kernels/common/check_args.h"
#include "kernels/common/check_segments.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/quantize_internal.h"
#include "kernels/quantize/quantize_segments_gpu_table.h"
#include "kernels/quantize/quantize_segments_internal.h"

namespace trireme {
namespace {

using quantize_internal::SegmentPanel;

constexpr std::int64_t kBlock = QuantizedSegments::kBlock;

/// That there may be.
std::int64_t rows_of(const QuantizeSegments& args) {
  return args.row_slot.given() ? args.row_slot.count() : args.x.shape[0];
}

std::int64_t bytes_moved(const QuantizeSegments& args) {
  return rows_of(args) * args.x.shape[1] * static_cast<std::int64_t>(size_of(args.x.dtype)) +
         bytes_of(args.out.codes, args.out.scales);
}

/// Of panels of x's rows or, of tokens, of those that are gathered for them.
void by_panels(Context& context, const QuantizeSegments& args) {
  const bool gathers = args.row_slot.given();
  const std::int64_t columns = args.x.shape[1];
  const auto memory = quantize_internal::panel_memory(context, gathers ? columns : 0, {args.out});
  quantize_internal::for_each_panel(args.begins, [&](const SegmentPanel& panel) {
    const auto [begin, count] = panel.rows;
    const auto quantize = [&](ConstTensorView x) {
      quantize_internal::quantize_panel(context, args.out, panel, x, memory.words);
    };
    if (!gathers) return quantize(args.x.rows(begin, count));
    const TensorView rows(memory.values, args.x.dtype, {count, columns});
    const auto* slot = args.row_slot.as<std::int32_t>() + begin;
    for (std::int64_t r = 0; r < count; ++r) {
      const ConstTensorView token = args.x.rows(slot[r] / args.slots, 1);
      std::memcpy(rows.rows(r, 1).data, token.data, token.bytes());
    }
    quantize(rows);
  });
}

/// With one scale a segment its largest magnitudes and scales stand in one place; codes across are
/// made in blocks of 128 rows.
void one_scale(Context& context, const QuantizeSegments& args, std::int64_t segment, Slice rows) {
  const QuantizedSegments& out = args.out;
  const ConstTensorView x = args.x.rows(rows.begin, rows.size);
  const TensorView scales = out.scales.rows(segment, 1);
  if (!out.across)
    return quantize(
        context,
        {{out.codes.rows(rows.begin, rows.size), scales, {rows.size, 0}, out.columns, true}, x});
  TensorView largest = scales;
  largest.dtype = DType::kI32;
  clear(context, largest);
  absolute_max(context, largest, x, {rows.size, 0}, out.columns);
  const std::int64_t first = QuantizedSegments::first_block(segment, rows.begin);
  for (std::int64_t r = 0; r < rows.size; r += kBlock) {
    const std::int64_t count = std::min(kBlock, rows.size - r);
    const TensorView codes = out.codes.rows(first + r / kBlock, 1);
    quantize(context,
             {{codes.reshape({out.columns.size(), kBlock}), {}, out.columns, {count, 0}, true},
              x.rows(r, count),
              largest,
              Transpose::kYes});
  }
  scales_of(context, scales, largest, out.format());
}

void on_cpu(Context& context, const QuantizeSegments& args) {
  if (args.out.in_blocks()) return by_panels(context, args);
  const auto* begins = args.begins.as<std::int32_t>();
  for (std::int64_t segment = 0; segment + 1 < args.begins.count(); ++segment) {
    const Slice rows = {begins[segment], begins[segment + 1] - begins[segment]};
    if (rows.size > 0) one_scale(context, args, segment, rows);
  }
}

void on_gpu(Context& context, const QuantizeSegments& args) {
  const QuantizedSegments& out = args.out;
  const std::int64_t segments = args.begins.count() - 1;
  const std::int64_t maxima = out.in_blocks() ? 0 : segments * out.columns.blocks();
  std::byte* const scratch =
      maxima == 0 ? nullptr
                  : context.scratch(static_cast<std::size_t>(maxima) * sizeof(std::int32_t));
  gpu_table("quantize_segments", &GpuKernels::quantize_segments)
      .quantize({context.exec(), out.codes.data, out.scales.as<float>(), args.x.data,
                 args.begins.as<std::int32_t>(), segments, rows_of(args),
                 quantize_internal::dim_of(out.columns, !out.across),
                 reinterpret_cast<std::int32_t*>(scratch), out.across,
                 args.row_slot.given() ? args.row_slot.as<std::int32_t>() : nullptr, args.slots,
                 args.x.dtype, out.format()});
}

void check(const Context& context, const QuantizeSegments& args) {
  const ArgumentChecker check("quantize_segments");
  const QuantizedSegments& out = args.out;
  check.rank("x", args.x, 2);
  check.floating("x", args.x.dtype);
  const std::int64_t most = rows_of(args), segments = args.begins.count() - 1;
  check.tensor("x", args.x, args.x.dtype, {args.x.shape[0], out.columns.size()});
  if (args.row_slot.given()) {
    check.tensor("row_slot", args.row_slot, DType::kI32, {most});
    check.that(args.x.dtype == DType::kBF16 && out.in_blocks(), "row_slot",
               "given, where rows are not quantised from bf16 in blocks");
    check.that(args.slots >= 1, "slots", "expected one or more of a token");
  }
  check.that(segments >= 0, "begins", "ends no segment");
  check.that(is_fp8(out.format()), "out.codes", "expected e4m3 or e5m2");
  check.that(out.columns.block == 0 || out.columns.block == kBlock, "out",
             "blocks are of 128, or whole parts");
  check.tensor("out.codes", out.codes, out.format(),
               QuantizedSegments::codes_shape(most, segments, out.columns, out.across));
  check.tensor("out.scales", out.scales, DType::kF32,
               QuantizedSegments::scales_shape(most, segments, out.columns, out.across));
  for (const ConstTensorView& written : {ConstTensorView(out.codes), ConstTensorView(out.scales)})
    check.disjoint("out", written, "x", args.x);
  check.disjoint("out.codes", out.codes, "out.scales", out.scales);
  check_segments(check, context, args.begins, segments, most);
}

}  // namespace

namespace {

/// Of a panel's codes, what says of which blocks they are.
quantize_internal::MadeCodes made_codes(const QuantizedSegments& out, std::int64_t rows) {
  if (!out.across) return {"codes", {{}, {}, {rows, 1}, out.columns, true}, Transpose::kNo};
  return {"codes", {{}, {}, out.columns.with_block(1), {rows, kBlock}, true}, Transpose::kYes};
}

}  // namespace

std::size_t quantize_internal::panel_words(const Context& context, const QuantizedSegments& out) {
  return made_words(context, made_codes(out, kBlock));
}

void quantize_internal::quantize_panel(Context& context, const QuantizedSegments& out,
                                       const SegmentPanel& panel, ConstTensorView x, float* words) {
  const Slice& rows = panel.rows;
  MadeCodes of = made_codes(out, rows.size);
  if (out.across) {
    of.out.codes = out.codes.rows(panel.block, 1).reshape({out.columns.size(), kBlock});
    of.out.scales = out.scales.rows(panel.block, 1).reshape({out.columns.size(), 1});
  } else {
    of.out.codes = out.codes.rows(rows.begin, rows.size);
    of.out.scales = out.scales.rows(rows.begin, rows.size);
  }
  quantize_made(context, of, x, words);
}

quantize_internal::PanelMemory quantize_internal::panel_memory(
    Context& context, std::int64_t columns, std::initializer_list<QuantizedSegments> outs) {
  std::size_t words = 0;
  for (const QuantizedSegments& out : outs) words = std::max(words, panel_words(context, out));
  const auto values = static_cast<std::size_t>(kBlock * columns) * size_of(DType::kBF16);
  std::byte* const memory = context.scratch(values + words * sizeof(float));
  return {memory, reinterpret_cast<float*>(memory + values)};
}

void quantize_segments(Context& context, const QuantizeSegments& args) {
  check(context, args);
  const OpSpan span(context.op_trace(), "quantize_segments", {0, bytes_moved(args)});
  if (rows_of(args) == 0 || args.x.count() == 0) return;
  context.on_gpu() ? on_gpu(context, args) : on_cpu(context, args);
}

}  // namespace trireme
