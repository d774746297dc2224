#include "kernels/common/dispatch.h"
#include "kernels/common/gpu_scratch.h"
#include "kernels/grouped_gemm/grouped_gemm_internal.h"

namespace trireme::grouped_gemm_internal {
namespace {

GpuTables gpu_tables() {
  return {&gpu_table("grouped_gemm", &GpuKernels::grouped_gemm), gpu_kernels().grouped_gemm_sm90};
}

bool has_hopper(const GpuTables& tables, const gpu::Info& info) {
  return tables.hopper != nullptr && runs_sm90a(info);
}

}  // namespace

GroupedGemmGpuArgs gpu_args(const Context& context, const GroupedGemm& args) {
  return {context.exec(),
          args.c_RN.data,
          args.a_RK.data,
          args.b.data,
          args.begins.as<std::int32_t>(),
          args.b.shape[0],
          args.sources,
          args.a_RK.shape[0],
          args.c_RN.shape[1],
          args.a_RK.shape[1],
          args.transpose_b == Transpose::kYes,
          args.a_RK.dtype,
          context.multiprocessors()};
}

GroupedGemmWeightsGpuArgs gpu_args(Context& context, const GroupedGemmWeights& args) {
  const std::int64_t floats = gpu_scratch::grouped_weights_floats(args.sources);
  std::byte* const sums =
      floats == 0 ? nullptr : context.scratch(static_cast<std::size_t>(floats) * sizeof(float));
  return {context.exec(),
          args.c_GMN.as<float>(),
          args.a_RM.data,
          args.b_RN.data,
          args.begins.as<std::int32_t>(),
          args.c_GMN.shape[0],
          args.sources,
          args.a_RM.shape[0],
          args.c_GMN.shape[1],
          args.c_GMN.shape[2],
          args.accumulate == Accumulate::kYes,
          args.a_RM.dtype,
          context.multiprocessors(),
          reinterpret_cast<float*>(sums)};
}

const GroupedGemmGpuKernels& choose_kernels(const GpuTables& tables, const gpu::Info& info,
                                            const GroupedGemmGpuArgs& args) {
  return has_hopper(tables, info) && tables.hopper->serves(args) ? tables.hopper->kernels
                                                                 : *tables.own;
}
const GroupedGemmGpuKernels& choose_kernels(const GpuTables& tables, const gpu::Info& info,
                                            const GroupedGemmWeightsGpuArgs& args) {
  return has_hopper(tables, info) && tables.hopper->serves_weights(args) ? tables.hopper->kernels
                                                                         : *tables.own;
}

void multiply_on_gpu(Context& context, const GroupedGemm& args) {
  const GroupedGemmGpuArgs raw = gpu_args(context, args);
  choose_kernels(gpu_tables(), info_of(context), raw).multiply(raw);
}

void weights_on_gpu(Context& context, const GroupedGemmWeights& args) {
  const GroupedGemmWeightsGpuArgs raw = gpu_args(context, args);
  choose_kernels(gpu_tables(), info_of(context), raw).weights(raw);
}

}  // namespace trireme::grouped_gemm_internal
