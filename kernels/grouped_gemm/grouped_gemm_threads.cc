// The products of f32 and bf16 operands on a CPU.

#include "kernels/grouped_gemm/grouped_gemm_internal.h"
#include "kernels/grouped_gemm/grouped_gemm_parts.h"

namespace trireme::grouped_gemm_internal {
namespace {

/// An operand's element [row, column] of `stride`.
template <class Pointer>
auto* at(const Pointer& view, std::int64_t row, std::int64_t stride, std::int64_t column) {
  return view.data + (row * stride + column) * static_cast<std::int64_t>(size_of(view.dtype));
}

}  // namespace

void multiply_on_cpu(Context& context, const GroupedGemm& args) {
  constexpr Extent kMost = {504, 1024};
  const std::int64_t experts = args.b.shape[0], k = args.a_RK.shape[1], n = args.c_RN.shape[1];
  const Segments segments(args.begins, args.sources);
  const ThreadProduct product(context, args.a_RK.dtype);
  const Scratch scratch = scratch_of(context, experts, product.scratch());
  const Parts parts = row_parts(context, segments, experts, n, kMost, scratch.cuts);
  const bool transposed = args.transpose_b == Transpose::kYes;
  const std::int64_t work = segments.count(experts) * n * k;
  for_each_part(context, parts, work, [&](const Part& part, int thread) {
    const std::int64_t row = segments.rows(part.expert).begin + part.rows.begin;
    const std::int64_t column = part.columns.begin;
    product.multiply({{part.rows.size, part.columns.size, k},
                      args.a_RK.dtype,
                      args.c_RN.dtype,
                      at(args.a_RK, row, k, 0),
                      transposed ? at(args.b, part.expert * n + column, k, 0)
                                 : at(args.b, part.expert * k, n, column),
                      at(args.c_RN, row, n, column),
                      k,
                      transposed ? k : n,
                      n,
                      false,
                      transposed,
                      false},
                     scratch.floats + thread * product.scratch());
  });
}

void weights_on_cpu(Context& context, const GroupedGemmWeights& args) {
  const std::int64_t experts = args.c_GMN.shape[0];
  const std::int64_t m = args.c_GMN.shape[1], n = args.c_GMN.shape[2];
  const bool accumulate = args.accumulate == Accumulate::kYes;
  const Segments segments(args.begins, args.sources);
  const ThreadProduct product(context, args.a_RM.dtype);
  const std::int64_t floats = product.scratch() + sums_kept(args.sources) * kWeightPartFloats;
  const Scratch scratch = scratch_of(context, experts, floats);
  const Parts parts = weight_parts(context, segments, experts, {m, n}, accumulate, scratch.cuts);
  const std::int64_t work = (segments.count(experts) + experts) * m * n;
  for_each_part(context, parts, work, [&](const Part& part, int thread) {
    float* const own = scratch.floats + thread * floats;
    const auto multiply = [&](const Part& of, std::int64_t segment, const PartSums& to) {
      const Slice rows = segments.rows(of.expert, segment, 1);
      product.multiply({{of.rows.size, of.columns.size, rows.size},
                        args.a_RM.dtype,
                        DType::kF32,
                        at(args.a_RM, rows.begin, m, of.rows.begin),
                        at(args.b_RN, rows.begin, n, of.columns.begin),
                        to.at,
                        m,
                        n,
                        to.stride,
                        true,
                        false,
                        to.add},
                       own);
    };
    float* const c =
        args.c_GMN.as<float>() + (part.expert * m + part.rows.begin) * n + part.columns.begin;
    WeightPart(segments, product, part, multiply).run({c, n, accumulate}, own + product.scratch());
  });
}

}  // namespace trireme::grouped_gemm_internal
