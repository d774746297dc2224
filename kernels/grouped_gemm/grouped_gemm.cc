#include "kernels/grouped_gemm/grouped_gemm.h"

#include "kernels/common/check_args.h"
#include "kernels/common/op_work.h"
#include "kernels/grouped_gemm/grouped_gemm_checks.h"
#include "kernels/grouped_gemm/grouped_gemm_internal.h"

namespace trireme {
namespace {

using grouped_gemm_internal::check_begins;
using grouped_gemm_internal::Counts;
using grouped_gemm_internal::counts_of;

OpWork work_of(const GroupedGemm& args, Counts counts) {
  const std::int64_t k = args.a_RK.shape[1], n = args.c_RN.shape[1];
  const auto size = static_cast<std::int64_t>(size_of(args.a_RK.dtype));
  return {2 * counts.rows * n * k, size * (counts.rows * (n + k) + counts.experts * n * k),
          args.a_RK.dtype};
}
/// All of c is written, but that of experts without rows stays where it is added to.
OpWork work_of(const GroupedGemmWeights& args, Counts counts) {
  const std::int64_t m = args.c_GMN.shape[1], n = args.c_GMN.shape[2];
  const auto size = static_cast<std::int64_t>(size_of(args.a_RM.dtype));
  const std::int64_t c =
      args.accumulate == Accumulate::kYes ? 2 * 4 * counts.experts * m * n : bytes_of(args.c_GMN);
  return {2 * counts.rows * m * n, size * counts.rows * (m + n) + c, args.a_RM.dtype};
}

}  // namespace

void grouped_gemm(Context& context, const GroupedGemm& args) {
  const ArgumentChecker check("grouped_gemm");
  check.rank("a", args.a_RK, 2);
  check.rank("b", args.b, 3);
  check.floating("a", args.a_RK.dtype);
  const DType type = args.a_RK.dtype;
  const bool transposed = args.transpose_b == Transpose::kYes;
  const std::int64_t most = args.a_RK.shape[0], k = args.a_RK.shape[1];
  const std::int64_t experts = args.b.shape[0], n = args.b.shape[transposed ? 1 : 2];
  check.tensor("a", args.a_RK, type, {most, k});
  check.tensor("b", args.b, type, transposed ? Shape{experts, n, k} : Shape{experts, k, n});
  check.tensor("c", args.c_RN, type, {most, n});
  check_begins(check, context, args.begins, args.sources, experts, most);
  check.disjoint("c", args.c_RN, "a", args.a_RK);
  check.disjoint("c", args.c_RN, "b", args.b);
  check.that(k > 0, "a", "products of no columns");
  const OpSpan span(context.op_trace(), args.use,
                    work_of(args, counts_of(context, args.begins, args.sources, {most, experts})));
  if (most == 0 || n == 0 || experts == 0) return;
  if (context.on_gpu()) return grouped_gemm_internal::multiply_on_gpu(context, args);
  grouped_gemm_internal::multiply_on_cpu(context, args);
}

void grouped_gemm_weights(Context& context, const GroupedGemmWeights& args) {
  const ArgumentChecker check("grouped_gemm_weights");
  check.rank("c", args.c_GMN, 3);
  check.rank("a", args.a_RM, 2);
  check.floating("a", args.a_RM.dtype);
  const std::int64_t most = args.a_RM.shape[0];
  const std::int64_t experts = args.c_GMN.shape[0], m = args.c_GMN.shape[1],
                     n = args.c_GMN.shape[2];
  check.tensor("c", args.c_GMN, DType::kF32, {experts, m, n});
  check.tensor("a", args.a_RM, args.a_RM.dtype, {most, m});
  check.tensor("b", args.b_RN, args.a_RM.dtype, {most, n});
  check_begins(check, context, args.begins, args.sources, experts, most);
  check.disjoint("c", args.c_GMN, "a", args.a_RM);
  check.disjoint("c", args.c_GMN, "b", args.b_RN);
  const OpSpan span(context.op_trace(), args.use,
                    work_of(args, counts_of(context, args.begins, args.sources, {most, experts})));
  if (args.c_GMN.count() == 0) return;
  if (context.on_gpu()) return grouped_gemm_internal::weights_on_gpu(context, args);
  grouped_gemm_internal::weights_on_cpu(context, args);
}

}  // namespace trireme
