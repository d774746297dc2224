#pragma once
// What the files of gemm_quantized share; no other folder includes it.

#include "kernels/gemm/gemm_internal.h"
#include "kernels/gemm/gemm_quantized.h"
#include "kernels/gemm/gemm_quantized_gpu_table.h"

namespace trireme::gemm_quantized_internal {

/// A padded operand [rows, K] and its K, of which some is padding.
gemm_internal::Sizes sizes_of(const QuantizedGemm& args);

/// A product of bf16 operands with the same c, epilogue, operand and saved, for what both share.
Gemm without_operands(const QuantizedGemm& args);

/// The product and its epilogue, of checked arguments that have elements; `then` is the caller's.
void gemm_on_gpu(Context& context, const QuantizedGemm& args);

GemmQuantizedGpuArgs gpu_args(const Context& context, const QuantizedGemm& args);
/// By a table that must serve the product; `multiprocessors`, if not 0: for tests.
void gemm_by_table(Context& context, const QuantizedGemm& args,
                   const GemmQuantizedGpuKernels& table, int multiprocessors = 0);

}  // namespace trireme::gemm_quantized_internal
