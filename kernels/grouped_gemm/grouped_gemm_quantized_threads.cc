// The products of fp8 operands on a CPU: each part is decoded to f32 by the thread that has it.

#include "kernels/common/dispatch.h"
#include "kernels/grouped_gemm/grouped_gemm_parts.h"
#include "kernels/grouped_gemm/grouped_gemm_quantized_internal.h"
#include "kernels/quantize/quantize_internal.h"

namespace trireme::grouped_gemm_internal {
namespace {

constexpr std::int64_t kBlock = ScaleDim::kAlignment;
/// Rows and columns of a result that a thread has at once, and how many of their terms: a panel of
/// b (512 KiB) stays in the outer caches.
constexpr Extent kMost = {240, 512};
constexpr std::int64_t kPartK = 2 * kBlock;

/// A matrix of codes whose rows are decoded.
struct Decoded {
  const std::byte* codes;
  const float* scales;
  QuantizedDim rows, columns;
  DType format;
};

/// panel [rows, columns] = the values there, 0 where the padded order has no index.
void decode(const Context& context, float* panel, const Decoded& of, Slice rows, Slice columns) {
  choose_by_isa(context, quantize_cpu)
      .decode_panel({{.threads = 1},
                     panel,
                     of.codes,
                     of.scales,
                     of.rows,
                     of.columns,
                     rows.begin,
                     rows.size,
                     columns.begin,
                     columns.size,
                     of.format});
}

Slice common(Slice a, Slice b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  const std::int64_t end = std::min(a.begin + a.size, b.begin + b.size);
  return {begin, std::max<std::int64_t>(0, end - begin)};
}

Decoded decoded(const ConstQuantizedView& view) {
  return {view.codes.data, view.scales.as<float>(), quantize_internal::dim_of(view.rows, false),
          quantize_internal::dim_of(view.columns, true), view.format()};
}

/// Rows of a segment, along.
ConstQuantizedView along(const ConstQuantizedSegments& of, std::int64_t segment, Slice rows) {
  return {of.codes.rows(rows.begin, rows.size),
          of.in_blocks() ? of.scales.rows(rows.begin, rows.size) : of.scales.rows(segment, 1),
          {rows.size, of.in_blocks() ? 1 : 0},
          of.columns,
          true};
}
/// A block of a segment, across.
ConstQuantizedView across(const ConstQuantizedSegments& of, std::int64_t segment,
                          std::int64_t block) {
  const ScaleDim rows = of.columns.with_block(of.in_blocks() ? 1 : 0);
  const ConstTensorView scales = of.scales.rows(of.in_blocks() ? block : segment, 1);
  return {of.codes.rows(block, 1).reshape({rows.size(), kBlock}),
          scales.reshape({scales.count(), 1}),
          rows,
          {kBlock, of.in_blocks() ? kBlock : 0},
          true};
}

/// A thread's memory.
struct Panels {
  static constexpr std::int64_t kFloats =
      (kMost.rows + kMost.columns) * kPartK + kMost.rows * kMost.columns;
  float *product, *a, *b, *sums;
  Panels(float* memory, const ThreadProduct& of)
      : product(memory),
        a(product + of.scratch()),
        b(a + kMost.rows * kPartK),
        sums(b + kMost.columns * kPartK) {}
};

/// sums (+)= the product of decoded panels a [m, k], b [n, k].
void multiply_panels(const ThreadProduct& product, const Panels& panels, const GemmSizes& sizes,
                     const PartSums& to) {
  product.multiply({sizes, DType::kF32, DType::kF32, panels.a, panels.b, to.at, sizes.k, sizes.k,
                    to.stride, false, true, to.add},
                   panels.product);
}

}  // namespace

void multiply_on_cpu(Context& context, const QuantizedGroupedGemm& args) {
  const std::int64_t experts = args.b.count(), n = args.c_RN.shape[1],
                     k = args.b.columns.padded_size();
  const Segments segments(args.begins, args.sources);
  const ThreadProduct product(context, DType::kF32);
  const std::int64_t floats = product.scratch() + Panels::kFloats;
  const Scratch scratch = scratch_of(context, experts, floats);
  const Parts parts = row_parts(context, segments, experts, n, kMost, scratch.cuts);
  const std::int64_t work = segments.count(experts) * n * k;
  for_each_part(context, parts, work, [&](const Part& part, int thread) {
    const Panels panels(scratch.floats + thread * floats, product);
    const Slice rows = {segments.rows(part.expert).begin + part.rows.begin, part.rows.size};
    const Decoded b = decoded(args.b[part.expert]);
    for (std::int64_t first = 0; first < k; first += kPartK) {
      const Slice depth = {first, std::min(kPartK, k - first)};
      for (std::int64_t source = 0; source < args.sources; ++source) {
        const Slice here = common(segments.rows(part.expert, source, 1), rows);
        if (here.size == 0) continue;
        const std::int64_t segment = part.expert * args.sources + source;
        decode(context, panels.a + (here.begin - rows.begin) * depth.size,
               decoded(along(args.a, segment, here)), {0, here.size}, depth);
      }
      decode(context, panels.b, b, part.columns, depth);
      multiply_panels(product, panels, {rows.size, part.columns.size, depth.size},
                      {panels.sums, part.columns.size, first > 0});
    }
    product.narrow(args.c_RN.as<BFloat16>() + rows.begin * n + part.columns.begin, n, panels.sums,
                   rows.size, part.columns.size);
  });
}

void weights_on_cpu(Context& context, const QuantizedGroupedGemmWeights& args) {
  const std::int64_t experts = args.c_GMN.shape[0];
  const std::int64_t m = args.c_GMN.shape[1], n = args.c_GMN.shape[2];
  const bool accumulate = args.accumulate == Accumulate::kYes;
  const Segments segments(args.begins, args.sources);
  const ThreadProduct product(context, DType::kF32);
  static_assert(kMost.rows >= kWeightPartMost.rows && kMost.columns >= kWeightPartMost.columns);
  const std::int64_t before = product.scratch() + Panels::kFloats;
  const std::int64_t floats = before + sums_kept(args.sources) * kWeightPartFloats;
  const Scratch scratch = scratch_of(context, experts, floats);
  const Parts parts = weight_parts(context, segments, experts, {m, n}, accumulate, scratch.cuts);
  const std::int64_t work = (segments.count(experts) + experts) * m * n;
  for_each_part(context, parts, work, [&](const Part& part, int thread) {
    float* const own = scratch.floats + thread * floats;
    const Panels panels(own, product);
    const auto multiply = [&](const Part& of, std::int64_t source, const PartSums& to) {
      const std::int64_t segment = of.expert * args.sources + source;
      const Slice rows = segments.rows(of.expert, source, 1);
      const std::int64_t first = QuantizedSegments::first_block(segment, rows.begin);
      for (std::int64_t block = 0; block < ceil_div(rows.size, kBlock); ++block) {
        decode(context, panels.a, decoded(across(args.a, segment, first + block)), of.rows,
               {0, kBlock});
        decode(context, panels.b, decoded(across(args.b, segment, first + block)), of.columns,
               {0, kBlock});
        multiply_panels(product, panels, {of.rows.size, of.columns.size, kBlock},
                        {to.at, to.stride, to.add || block > 0});
      }
    };
    float* const c =
        args.c_GMN.as<float>() + (part.expert * m + part.rows.begin) * n + part.columns.begin;
    WeightPart(segments, product, part, multiply).run({c, n, accumulate}, own + before);
  });
}

}  // namespace trireme::grouped_gemm_internal
