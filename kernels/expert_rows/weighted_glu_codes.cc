#include "kernels/expert_rows/weighted_glu_codes.h"

#include <algorithm>

#include "kernels/common/check_segments.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/expert_rows/expert_rows_internal.h"
#include "kernels/expert_rows/weighted_glu_codes_gpu_table.h"
#include "kernels/quantize/quantize_segments_internal.h"

namespace trireme {
namespace {

using expert_rows_internal::GluNames;
using quantize_internal::SegmentPanel;

constexpr std::int64_t kBlock = QuantizedSegments::kBlock;

/// Rows that there may be, and segments; columns of h.
struct Sizes {
  std::int64_t rows, segments, ffn;
};

/// In blocks, in parts of so many columns as h has, each from the beginning of a block.
void check_codes(const ArgumentChecker& check, const char* name, const QuantizedSegments& out,
                 const Sizes& sizes, bool across) {
  const auto parts = out.columns.given_parts();
  check.that(is_fp8(out.format()) && out.columns.block == kBlock && out.across == across, name,
             across ? "expected codes across, in blocks" : "expected codes along, in blocks");
  check.that(std::all_of(parts.begin(), parts.end(),
                         [&](const ScaleDim::Part& part) {
                           return part.size == sizes.ffn && ScaleDim::phase(part, kBlock) == 0;
                         }),
             name, "expected parts of F from the beginning of a block");
  check.tensor(name, out.codes, out.format(),
               QuantizedSegments::codes_shape(sizes.rows, sizes.segments, out.columns, across));
  check.tensor(name, out.scales, DType::kF32,
               QuantizedSegments::scales_shape(sizes.rows, sizes.segments, out.columns, across));
}

/// Of `check`ed args: bf16 rows of segments, without biases.
WeightedGluRows rows_of(const Context& context, const ArgumentChecker& check,
                        const WeightedGlu& args) {
  check.rank("gate_up", args.gate_up_R2F, 2);
  const std::int64_t rows = args.gate_up_R2F.shape[0], ffn = args.gate_up_R2F.shape[1] / 2;
  check.that(args.row_slot.given() && !args.biased.bias_G2F.given(), "row_slot",
             "expected rows of experts, without biases");
  check.that(ffn % 8 == 0, "gate_up", "columns are no multiple of 16");
  const WeightedGluRows of =
      expert_rows_internal::unit_rows(context, check, {rows, ffn, DType::kBF16}, args);
  check_segments(check, context, args.begins, args.begins.count() - 1, rows);
  return of;
}

Sizes sizes_of(const WeightedGluRows& rows, const WeightedGlu& args) {
  return {rows.rows_max, args.begins.count() - 1, rows.ffn};
}

RowCodes row_codes(const QuantizedSegments& out) {
  return {reinterpret_cast<std::uint8_t*>(out.codes.data), out.scales.as<float>(),
          out.columns.padded_size(), nullptr};
}

/// Those of a panel alone, on a CPU; `count` outlives them.
WeightedGluRows of_panel(WeightedGluRows rows, const Slice& panel, const std::int32_t& count) {
  rows.gate_up = static_cast<const std::byte*>(rows.gate_up) +
                 panel.begin * 2 * rows.ffn * static_cast<std::int64_t>(size_of(rows.type));
  rows.row_slot += panel.begin;
  rows.row_count = &count;
  rows.rows_max = count;
  return rows;
}

constexpr GluNames kForwardNames = {"weighted_swiglu_forward_codes", "weighted_geglu_forward_codes",
                                    nullptr},
                   kBackwardNames = {"weighted_swiglu_backward_codes",
                                     "weighted_geglu_backward_codes", nullptr};

}  // namespace

void weighted_glu_forward_codes(Context& context, const QuantizedSegments& h,
                                const WeightedGlu& args) {
  const char* name = kForwardNames.of(args);
  const OpSpan span(context.op_trace(), name, {0, bytes_of(args.gate_up_R2F, h.codes, h.scales)});
  const ArgumentChecker check(name);
  const WeightedGluRows rows = rows_of(context, check, args);
  check_codes(check, "h", h, sizes_of(rows, args), false);
  check.that(h.format() == DType::kF8E4M3 && h.columns.part_count == 1, "h",
             "expected e4m3, of one part");
  for (const ConstTensorView& written : {ConstTensorView(h.codes), ConstTensorView(h.scales)})
    check.disjoint("h", written, "gate_up", args.gate_up_R2F);
  if (rows.rows_max == 0) return;
  if (context.on_gpu())
    return gpu_table(name, &GpuKernels::weighted_glu_codes)
        .forward({context.exec(), row_codes(h), rows});
  const auto memory = quantize_internal::panel_memory(context, rows.ffn, {h});
  quantize_internal::for_each_panel(args.begins, [&](const SegmentPanel& panel) {
    const auto count = static_cast<std::int32_t>(panel.rows.size);
    const TensorView made(memory.values, rows.type, {panel.rows.size, rows.ffn});
    expert_rows_internal::table(context).glu_forward(
        {context.exec(), made.data, of_panel(rows, panel.rows, count)});
    quantize_internal::quantize_panel(context, h, panel, made, memory.words);
  });
}

namespace {

/// A panel's gradients and h, in memory for 3 F columns of it, then their codes.
void backward_on_cpu(Context& context, const WeightedGluGradientCodes& out, float* dweights,
                     const ConstTensorView& dh_RF, const WeightedGluRows& rows,
                     const ConstTensorView& begins) {
  const auto memory = quantize_internal::panel_memory(
      context, 3 * rows.ffn, {out.dgate_up, out.dgate_up_across, out.h_across});
  quantize_internal::for_each_panel(begins, [&](const SegmentPanel& panel) {
    const auto count = static_cast<std::int32_t>(panel.rows.size);
    const TensorView dgate_up(memory.values, rows.type, {panel.rows.size, 2 * rows.ffn});
    const TensorView h(dgate_up.data + dgate_up.bytes(), rows.type, {panel.rows.size, rows.ffn});
    expert_rows_internal::table(context).glu_backward(
        {context.exec(), dgate_up.data, dweights + panel.rows.begin, h.data,
         dh_RF.rows(panel.rows.begin, panel.rows.size).data, of_panel(rows, panel.rows, count)});
    quantize_internal::quantize_panel(context, out.dgate_up, panel, dgate_up, memory.words);
    quantize_internal::quantize_panel(context, out.dgate_up_across, panel, dgate_up, memory.words);
    quantize_internal::quantize_panel(context, out.h_across, panel, h, memory.words);
  });
}

void backward_on_gpu(Context& context, const WeightedGluGradientCodes& out, float* dweights,
                     const ConstTensorView& dh_RF, const WeightedGluRows& rows,
                     const ConstTensorView& begins) {
  const auto across = [](const QuantizedSegments& of) {
    return WeightedGluBackwardCodesArgs::Across{reinterpret_cast<std::uint8_t*>(of.codes.data),
                                                of.scales.as<float>()};
  };
  gpu_table("weighted_glu_backward_codes", &GpuKernels::weighted_glu_codes)
      .backward({context.exec(), row_codes(out.dgate_up), across(out.dgate_up_across),
                 across(out.h_across), dweights, dh_RF.data, rows, begins.as<std::int32_t>(),
                 begins.count() - 1, out.dgate_up.format()});
}

}  // namespace

void weighted_glu_backward_codes(Context& context, const WeightedGluGradientCodes& out,
                                 TensorView dweights_R, ConstTensorView dh_RF,
                                 const WeightedGlu& args) {
  const char* name = kBackwardNames.of(args);
  const QuantizedSegments *along = &out.dgate_up, *across = &out.dgate_up_across,
                          *h = &out.h_across;
  const OpSpan span(context.op_trace(), name,
                    {0, bytes_of(args.gate_up_R2F, dh_RF, along->codes, along->scales,
                                 across->codes, across->scales, h->codes, h->scales)});
  const ArgumentChecker check(name);
  const WeightedGluRows rows = rows_of(context, check, args);
  const Sizes sizes = sizes_of(rows, args);
  check_codes(check, "dgate_up", *along, sizes, false);
  check_codes(check, "dgate_up_across", *across, sizes, true);
  check_codes(check, "h_across", *h, sizes, true);
  check.that(along->columns.part_count == 2, "dgate_up", "expected two parts");
  check.that(across->columns.part_count == 2 && across->format() == along->format(),
             "dgate_up_across", "expected dgate_up's parts and type");
  check.that(h->columns.part_count == 1 && h->format() == DType::kF8E4M3, "h_across",
             "expected e4m3, of one part");
  check.tensor("dh", dh_RF, rows.type, {rows.rows_max, rows.ffn});
  check.tensor("dweights", dweights_R, DType::kF32, {rows.rows_max});
  for (const QuantizedSegments* of : {along, across, h}) {
    for (const ConstTensorView& written :
         {ConstTensorView(of->codes), ConstTensorView(of->scales)}) {
      check.disjoint("out", written, "gate_up", args.gate_up_R2F);
      check.disjoint("out", written, "dh", dh_RF);
    }
  }
  if (rows.rows_max == 0) return;
  const auto run = context.on_gpu() ? backward_on_gpu : backward_on_cpu;
  run(context, out, dweights_R.as<float>(), dh_RF, rows, args.begins);
}

}  // namespace trireme
