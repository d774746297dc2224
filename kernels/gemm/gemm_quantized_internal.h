#pragma once
// What the files of gemm_quantized share; no other folder includes it.

#include "kernels/gemm/gemm_internal.h"
#include "kernels/gemm/gemm_quantized.h"
#include "kernels/gemm/gemm_quantized_gpu_table.h"

namespace trireme::gemm_quantized_internal {

/// A padded operand [rows, K] and its K, of which some is padding.
gemm_internal::Sizes sizes_of(const QuantizedGemm& args);

/// What a product has to do at least, its epilogue included.
OpWork work_of(const QuantizedGemm& args);

/// A product of bf16 operands with the same c, epilogue, operand and saved, for what both share.
Gemm without_operands(const QuantizedGemm& args);

/// The kernels that a product is chosen among.
struct GpuTables {
  /// Null where the GPU or the build has none.
  const GemmQuantizedGpuKernels *own, *library, *triple = nullptr, *split = nullptr;
};
GpuTables gpu_tables(Device device);
/// By rule; null where none serves the product with its epilogue, or an op behind it is faster.
const GemmQuantizedGpuKernels* choose_kernel(const GpuTables& tables,
                                             const GemmQuantizedGpuArgs& args);
/// That of `choices`, where it is there and serves the product; else null.
const GemmQuantizedGpuKernels* chosen_kernel(const GpuTables& tables,
                                             const GemmQuantizedGpuArgs& args,
                                             const KernelChoices& choices);
QuantizedProductKey key_of(const GemmQuantizedGpuArgs& args);
/// Where the choice is made: the context's (measured, if asked), else by rule. Of a product that
/// has elements; null: its epilogue is an op of its own.
const GemmQuantizedGpuKernels* choose_kernel(Context& context, const QuantizedGemm& args);

/// The product by the kernel chosen, of checked arguments with a result that has elements; `then`
/// is the caller's.
/// Gives whether it has left args.amax.
bool gemm_on_gpu(Context& context, const QuantizedGemm& args,
                 const GemmQuantizedGpuKernels* chosen);
/// The product, then the op that its epilogue stands for; `then` is the caller's.
void gemm_unfused(Context& context, const QuantizedGemm& args);

GemmQuantizedGpuArgs gpu_args(const Context& context, const QuantizedGemm& args);
/// Of the recipe with one scale a tensor, to ask a table about: its memory is not looked at.
GemmQuantizedGpuArgs sample_product();
/// By a table that must serve the product; `multiprocessors`, if not 0: for tests.
void gemm_by_table(Context& context, const QuantizedGemm& args,
                   const GemmQuantizedGpuKernels& table, int multiprocessors = 0);

}  // namespace trireme::gemm_quantized_internal
