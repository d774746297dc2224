#pragma once
// What the files of gemm share; nobody else includes it.

#include "base/op_trace.h"
#include "device/gpu.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_gpu_table.h"
#include "kernels/gemm/gemm_table.h"
#include "kernels/gemm/kernel_choices.h"

namespace trireme::gemm_internal {

using Sizes = GemmSizes;

/// By sgemm_cpu.cc or by oneDNN; `scratch` has sgemm_scratch(context) floats.
void sgemm(Context& context, const SgemmArgs& args, float* scratch);
std::int64_t sgemm_scratch(const Context& context);
/// Whether c has rows enough to pack b for. Only then may rows that are done go on.
bool by_own_kernel(Sizes sizes);
/// Whether each thread takes a part of K, which counts tokens: for weight gradients whose operands
/// are still in the caches of the threads that wrote them, if to add all their sums moves less
/// between caches than to read the tokens of others.
bool cuts_tokens(int threads, const SgemmArgs& args);

/// fp32 means fp32 to oneDNN, whatever ONEDNN_DEFAULT_FPMATH_MODE says, and its team is the
/// context's: before products of its, outside of parallel regions.
void prepare_library(int threads);
/// By oneDNN's team or, in a parallel region, by the calling thread. False: it refuses.
bool sgemm_by_library(const SgemmArgs& args);

/// The kernels of this program's GPU code that `gemm` chooses among.
struct GpuTables {
  const GemmGpuKernels *own, *hopper, *library;  ///< all but own may be null
};
GpuTables gpu_tables();
/// By rule; null where none serves the product with its epilogue.
const GemmGpuKernels* choose_kernel(const GpuTables& tables, const gpu::Info& info,
                                    const GemmGpuArgs& args);
/// That of `choices`, where it is there and serves the product; else null.
const GemmGpuKernels* chosen_kernel(const GpuTables& tables, const gpu::Info& info,
                                    const GemmGpuArgs& args, const KernelChoices& choices);
/// The one place where the choice is made: the context's (measured, if it asks for that), else by
/// rule for its GPU. Null also for the CPU.
const GemmGpuKernels* choose_kernel(Context& context, const Gemm& args, Sizes sizes);
ProductKey key_of(const GemmGpuArgs& args);
/// By the kernel chosen.
void gemm_on_gpu(Context& context, const Gemm& args, Sizes sizes, const GemmGpuKernels* chosen);
/// By a kernel of `table`, which must serve it; `multiprocessors`, where not 0, instead of the
/// GPU's: how tests ask for large tiles.
void gemm_by_table(Context& context, const Gemm& args, Sizes sizes, const GemmGpuKernels& table,
                   int multiprocessors = 0);
GemmGpuArgs gpu_args(const Context& context, const Gemm& args, Sizes sizes);

/// What gemm_missing_library says of this library's table, which may be null.
std::string missing_library(const GemmGpuKernels* library);

/// Whether oneDNN multiplies bf16 with the CPU's own instructions.
bool has_native_bf16(const Context& context);
/// By a oneDNN primitive of the operands' type, f32 or bf16 (f32 stands here for tests: it runs on
/// any CPU).
void gemm_by_primitive(Context& context, const Gemm& args, Sizes sizes);
/// bf16 operands widened block by block, then sgemm: right on any CPU, and slower.
void gemm_by_panels(Context& context, const Gemm& args, Sizes sizes);

/// What a product has to do at least, its epilogue included.
OpWork work_of(const Gemm& args, Sizes sizes);

/// c[r, :] = bias for each row.
void fill_with_bias(Context& context, TensorView c_MN, ConstTensorView bias_N);
const GemmKernels& kernels(const Context& context);

}  // namespace trireme::gemm_internal
