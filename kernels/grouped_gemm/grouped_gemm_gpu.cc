#include "kernels/common/dispatch.h"
#include "kernels/common/gpu_scratch.h"
#include "kernels/grouped_gemm/grouped_gemm_gpu_table.h"
#include "kernels/grouped_gemm/grouped_gemm_internal.h"

namespace trireme::grouped_gemm_internal {

void multiply_on_gpu(Context& context, const GroupedGemm& args) {
  gpu_table("grouped_gemm", &GpuKernels::grouped_gemm)
      .multiply({context.exec(), args.c_RN.data, args.a_RK.data, args.b.data,
                 args.begins.as<std::int32_t>(), args.b.shape[0], args.sources, args.a_RK.shape[0],
                 args.c_RN.shape[1], args.a_RK.shape[1], args.transpose_b == Transpose::kYes,
                 args.a_RK.dtype, context.multiprocessors()});
}

void weights_on_gpu(Context& context, const GroupedGemmWeights& args) {
  const std::int64_t floats = gpu_scratch::grouped_weights_floats(args.sources);
  std::byte* const sums =
      floats == 0 ? nullptr : context.scratch(static_cast<std::size_t>(floats) * sizeof(float));
  gpu_table("grouped_gemm", &GpuKernels::grouped_gemm)
      .weights({context.exec(), args.c_GMN.as<float>(), args.a_RM.data, args.b_RN.data,
                args.begins.as<std::int32_t>(), args.c_GMN.shape[0], args.sources,
                args.c_GMN.shape[1], args.c_GMN.shape[2], args.accumulate == Accumulate::kYes,
                args.a_RM.dtype, context.multiprocessors(), reinterpret_cast<float*>(sums)});
}

}  // namespace trireme::grouped_gemm_internal
