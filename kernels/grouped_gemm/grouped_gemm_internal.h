#pragma once
// What the files of grouped_gemm share.

#include "kernels/common/gpu_info.h"
#include "kernels/grouped_gemm/grouped_gemm.h"
#include "kernels/grouped_gemm/grouped_gemm_gpu_table.h"

namespace trireme::grouped_gemm_internal {

// Of operands that were checked, with rows, columns and K.
void multiply_on_cpu(Context& context, const GroupedGemm& args);
void weights_on_cpu(Context& context, const GroupedGemmWeights& args);
void multiply_on_gpu(Context& context, const GroupedGemm& args);
void weights_on_gpu(Context& context, const GroupedGemmWeights& args);

/// What a GPU's table gets; those of weights use the context's scratch memory.
GroupedGemmGpuArgs gpu_args(const Context& context, const GroupedGemm& args);
GroupedGemmWeightsGpuArgs gpu_args(Context& context, const GroupedGemmWeights& args);

/// Those that this program has; Hopper's may be null.
struct GpuTables {
  const GroupedGemmGpuKernels* own;
  const GroupedGemmHopperKernels* hopper;
};
/// Hopper's where it serves, on such a GPU.
const GroupedGemmGpuKernels& choose_kernels(const GpuTables& tables, const gpu::Info& info,
                                            const GroupedGemmGpuArgs& args);
const GroupedGemmGpuKernels& choose_kernels(const GpuTables& tables, const gpu::Info& info,
                                            const GroupedGemmWeightsGpuArgs& args);

}  // namespace trireme::grouped_gemm_internal
