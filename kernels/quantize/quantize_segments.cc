#include "kernels/quantize/quantize_segments.h"

#include "kernels/common/check_args.h"
#include "kernels/common/check_segments.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/quantize_internal.h"
#include "kernels/quantize/quantize_segments_gpu_table.h"

namespace trireme {
namespace {

constexpr std::int64_t kBlock = QuantizedSegments::kBlock;

/// The rows of x in blocks of one column each, across; a segment's largest magnitudes and scales
/// stand in one place.
class OnCpu {
 public:
  OnCpu(Context& context, const QuantizeSegments& args) : context_(context), args_(args) {}

  void run() const {
    const auto* begins = args_.begins.as<std::int32_t>();
    for (std::int64_t segment = 0; segment + 1 < args_.begins.count(); ++segment) {
      const Slice rows = {begins[segment], begins[segment + 1] - begins[segment]};
      if (rows.size == 0) continue;
      args_.out.across ? across(segment, rows) : along(segment, rows);
    }
  }

 private:
  void along(std::int64_t segment, Slice rows) const {
    const QuantizedSegments& out = args_.out;
    const bool blocks = out.in_blocks();
    Quantize one;
    one.out = {out.codes.rows(rows.begin, rows.size),
               blocks ? out.scales.rows(rows.begin, rows.size) : out.scales.rows(segment, 1),
               {rows.size, blocks ? 1 : 0},
               out.columns,
               true};
    one.x = args_.x.rows(rows.begin, rows.size);
    quantize(context_, one);
  }

  void across(std::int64_t segment, Slice rows) const {
    const QuantizedSegments& out = args_.out;
    if (out.in_blocks()) return across_blocks(segment, rows, {});
    TensorView largest = out.scales.rows(segment, 1);
    largest.dtype = DType::kI32;
    clear(context_, largest);
    absolute_max(context_, largest, args_.x.rows(rows.begin, rows.size), {rows.size, 0},
                 out.columns);
    across_blocks(segment, rows, largest);
    scales_of(context_, out.scales.rows(segment, 1), largest, out.format());
  }

  void across_blocks(std::int64_t segment, Slice rows, ConstTensorView largest) const {
    const QuantizedSegments& out = args_.out;
    const ScaleDim columns = out.columns.with_block(out.in_blocks() ? 1 : 0);
    const std::int64_t first = QuantizedSegments::first_block(segment, rows.begin);
    for (std::int64_t block = 0; block * kBlock < rows.size; ++block) {
      const std::int64_t begin = block * kBlock, count = std::min(kBlock, rows.size - begin);
      Quantize one;
      one.out.codes = out.codes.rows(first + block, 1).reshape({columns.size(), kBlock});
      if (!largest.given())
        one.out.scales = out.scales.rows(first + block, 1).reshape({columns.size(), 1});
      one.out.rows = columns;
      one.out.columns = {count, out.in_blocks() ? kBlock : 0};
      one.out.padded = true;
      one.x = args_.x.rows(rows.begin + begin, count);
      one.amax = largest;
      one.transpose = Transpose::kYes;
      quantize(context_, one);
    }
  }

  Context& context_;
  const QuantizeSegments& args_;
};

void on_gpu(Context& context, const QuantizeSegments& args) {
  const QuantizedSegments& out = args.out;
  const std::int64_t segments = args.begins.count() - 1;
  const std::int64_t maxima = out.in_blocks() ? 0 : segments * out.columns.blocks();
  std::byte* const scratch =
      maxima == 0 ? nullptr
                  : context.scratch(static_cast<std::size_t>(maxima) * sizeof(std::int32_t));
  gpu_table("quantize_segments", &GpuKernels::quantize_segments)
      .quantize({context.exec(), out.codes.data, out.scales.as<float>(), args.x.data,
                 args.begins.as<std::int32_t>(), segments, args.x.shape[0],
                 quantize_internal::dim_of(out.columns, !out.across),
                 reinterpret_cast<std::int32_t*>(scratch), out.across, args.x.dtype, out.format()});
}

void check(const Context& context, const QuantizeSegments& args) {
  const ArgumentChecker check("quantize_segments");
  const QuantizedSegments& out = args.out;
  check.rank("x", args.x, 2);
  check.floating("x", args.x.dtype);
  const std::int64_t most = args.x.shape[0], segments = args.begins.count() - 1;
  check.tensor("x", args.x, args.x.dtype, {most, out.columns.size()});
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

void quantize_segments(Context& context, const QuantizeSegments& args) {
  check(context, args);
  const OpSpan span(context.op_trace(), "quantize_segments",
                    {0, bytes_of(args.x, args.out.codes, args.out.scales)});
  if (args.x.count() == 0) return;
  context.on_gpu() ? on_gpu(context, args) : OnCpu(context, args).run();
}

}  // namespace trireme
