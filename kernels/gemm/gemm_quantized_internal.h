#pragma once
// What the files of the quantised product share; no other folder includes it.

#include "device/gpu.h"
#include "kernels/gemm/gemm_quantized.h"
#include "kernels/gemm/gemm_quantized_gpu_table.h"

namespace trireme::gemm_quantized_internal {

/// The product with its epilogue, for operands that were checked; not `then`.
void gemm_on_gpu(Context& context, const QuantizedGemm& args);

GemmQuantizedGpuArgs gpu_args(const Context& context, const QuantizedGemm& args);
/// By a table that must serve the product; `multiprocessors`, if not 0: for tests.
void gemm_by_table(Context& context, const QuantizedGemm& args,
                   const GemmQuantizedGpuKernels& table, int multiprocessors = 0);

}  // namespace trireme::gemm_quantized_internal
