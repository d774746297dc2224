#include "kernels/grouped_gemm/grouped_gemm_quantized.h"

#include <string>

#include "kernels/common/check_args.h"
#include "kernels/common/op_work.h"
#include "kernels/grouped_gemm/grouped_gemm_checks.h"
#include "kernels/grouped_gemm/grouped_gemm_quantized_internal.h"
#include "kernels/quantize/quantize_internal.h"

namespace trireme {
namespace {

using grouped_gemm_internal::Counts;

/// Rows that there may be, and segments.
struct Table {
  std::int64_t most, segments;
};

void check_segments(const ArgumentChecker& check, const char* name,
                    const ConstQuantizedSegments& of, Table table, bool across) {
  const std::string codes = std::string(name) + ".codes", scales = std::string(name) + ".scales";
  check.that(of.across == across, name, across ? "lies along its columns" : "lies along its rows");
  check.that(is_fp8(of.format()), codes.c_str(), "expected e4m3 or e5m2");
  check.that(of.columns.block == 0 || of.columns.block == ScaleDim::kAlignment, name,
             "blocks are of 128, or whole parts");
  check.tensor(codes.c_str(), of.codes, of.format(),
               QuantizedSegments::codes_shape(table.most, table.segments, of.columns, across));
  check.tensor(scales.c_str(), of.scales, DType::kF32,
               QuantizedSegments::scales_shape(table.most, table.segments, of.columns, across));
}

void check_matrices(const ArgumentChecker& check, const ConstQuantizedMatrices& b) {
  check.rank("b.codes", b.codes, 3);
  check.tensor("b.scales", b.scales, DType::kF32, {b.count(), b.rows.blocks(), b.columns.blocks()});
  if (b.count() > 0) quantize_internal::check_view("grouped_gemm_quantized", "b", b[0]);
  check.that(b.padded || b.columns.aligned(), "b", "is not padded along K");
}

void check_formats(const ArgumentChecker& check, DType a, DType b) {
  check.that(a == DType::kF8E4M3 || b == DType::kF8E4M3, "b", "is e5m2 as a is");
}

/// Bytes of the operands' rows: codes, and scales of blocks.
std::int64_t row_bytes(const ConstQuantizedSegments& of) {
  const std::int64_t width = of.across ? of.columns.size() : of.columns.padded_size();
  return width + (of.in_blocks() ? 4 * ceil_div(width, QuantizedSegments::kBlock) : 0);
}

}  // namespace

void grouped_gemm_quantized(Context& context, const QuantizedGroupedGemm& args) {
  const ArgumentChecker check("grouped_gemm_quantized");
  check.rank("c", args.c_RN, 2);
  check_matrices(check, args.b);
  const std::int64_t experts = args.b.count(), most = args.c_RN.shape[0], n = args.b.rows.size(),
                     k = args.b.columns.size();
  check_segments(check, "a", args.a, {most, experts * args.sources}, false);
  check.tensor("c", args.c_RN, DType::kBF16, {most, n});
  const ScaleDim &a = args.a.columns, &b = args.b.columns;
  check.that(a.parts == b.parts && a.part_count == b.part_count, "b", "has other parts along K");
  check_formats(check, args.a.format(), args.b.codes.dtype);
  grouped_gemm_internal::check_begins(check, context, args.begins, args.sources, experts, most);
  check.disjoint("c", args.c_RN, "a", args.a.codes);
  check.disjoint("c", args.c_RN, "b", args.b.codes);
  check.that(k > 0, "a", "products of no columns");
  const Counts counts =
      grouped_gemm_internal::counts_of(context, args.begins, args.sources, {most, experts});
  const std::int64_t weight =
      args.b.rows.size() * args.b.columns.padded_size() + 4 * args.b.rows.blocks() * b.blocks();
  const OpSpan span(
      context.op_trace(), args.use,
      {2 * counts.rows * n * k, counts.rows * (row_bytes(args.a) + 2 * n) + counts.experts * weight,
       args.a.format()});
  if (most == 0 || n == 0 || experts == 0) return;
  if (context.on_gpu()) return grouped_gemm_internal::multiply_on_gpu(context, args);
  grouped_gemm_internal::multiply_on_cpu(context, args);
}

void grouped_gemm_quantized_weights(Context& context, const QuantizedGroupedGemmWeights& args) {
  const ArgumentChecker check("grouped_gemm_quantized_weights");
  check.rank("c", args.c_GMN, 3);
  check.rank("a.codes", args.a.codes, 3);
  const std::int64_t experts = args.c_GMN.shape[0], m = args.a.columns.size(),
                     n = args.b.columns.size(), segments = experts * args.sources;
  // Blocks that are room for so many rows, of which no host knows the number.
  const std::int64_t most = (args.a.codes.shape[0] - segments) * QuantizedSegments::kBlock;
  check.that(most >= 0, "a.codes", "has fewer blocks than there are segments");
  check_segments(check, "a", args.a, {most, segments}, true);
  check_segments(check, "b", args.b, {most, segments}, true);
  check.that(args.a.in_blocks() == args.b.in_blocks(), "b", "has other blocks than a");
  check_formats(check, args.a.format(), args.b.format());
  check.tensor("c", args.c_GMN, DType::kF32, {experts, m, n});
  grouped_gemm_internal::check_begins(check, context, args.begins, args.sources, experts, most);
  check.disjoint("c", args.c_GMN, "a", args.a.codes);
  check.disjoint("c", args.c_GMN, "b", args.b.codes);
  const bool accumulate = args.accumulate == Accumulate::kYes;
  const Counts counts =
      grouped_gemm_internal::counts_of(context, args.begins, args.sources, {most, experts});
  const std::int64_t c = accumulate ? 2 * 4 * counts.experts * m * n : bytes_of(args.c_GMN);
  const OpSpan span(context.op_trace(), args.use,
                    {2 * counts.rows * m * n,
                     counts.rows * (row_bytes(args.a) + row_bytes(args.b)) + c, args.a.format()});
  if (args.c_GMN.count() == 0) return;
  if (context.on_gpu()) return grouped_gemm_internal::weights_on_gpu(context, args);
  grouped_gemm_internal::weights_on_cpu(context, args);
}

}  // namespace trireme
