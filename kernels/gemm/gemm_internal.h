#pragma once
// What the files of gemm share; no other folder includes it.

#include <functional>
#include <optional>

#include "base/op_trace.h"
#include "device/gpu.h"
#include "kernels/common/kernel_choices.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_gpu_table.h"
#include "kernels/gemm/gemm_table.h"

namespace trireme {
class ArgumentChecker;
}
namespace trireme::gemm_internal {

using Sizes = GemmSizes;

/// The kernel of ours that multiplies on a CPU; null: oneDNN does or, where the CPU has no bf16,
/// gemm_by_panels. oneDNN is faster at few rows and with AMX; CpuProduct says what ours serves.
/// kAnyNumber: the same choice for any M.
enum class Rows : std::uint8_t { kEnough, kAnyNumber };
const CpuProduct* own_kernel(const GemmKernels& kernels, const ProductArgs& args,
                             bool library_has_tiles, Rows rows = Rows::kEnough);
/// Over the context's threads, by `own` or, in f32, oneDNN, in product_scratch(context) floats.
void multiply(Context& context, const ProductArgs& args, const CpuProduct* own, float* scratch);
std::int64_t product_scratch(const Context& context);
/// Whether K, here the tokens, is divided among the threads: for weight gradients with operands in
/// their writers' caches, where adding sums moves less than reading others' tokens.
bool cuts_tokens(int threads, const ProductArgs& args);

/// To be called before oneDNN multiplies, outside of parallel regions: it then computes fp32 in
/// fp32, whatever ONEDNN_DEFAULT_FPMATH_MODE says, with the context's number of threads.
void prepare_library(int threads);
/// By oneDNN's threads or, in a parallel region, by the calling one. False: oneDNN refuses.
bool sgemm_by_library(const ProductArgs& args);

/// Ways to the same product, by ProductKernel; none where a kernel does not serve it.
using ProductWays = std::array<std::function<void()>, kProductKernelCount>;
/// The fastest, and what each takes; nothing where there are fewer than two.
std::optional<ProductChoice> measure_ways(Context& context, const ProductWays& ways);
/// As much of the context's scratch memory as a GPU's table asks for; null for none.
void* workspace_of(Context& context, std::size_t bytes);

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
/// Where the choice is made: the context's (measured, if asked), else by rule. Null for the CPU.
const GemmGpuKernels* choose_kernel(Context& context, const Gemm& args, Sizes sizes);

/// Operand, saved and c of an epilogue whose values are of `type`.
void check_epilogue(const ArgumentChecker& check, const Gemm& args, Sizes sizes, DType type);
std::int64_t columns_of_c(GemmEpilogue epilogue, std::int64_t n);
/// Where the product is written, on which the epilogue then works.
TensorView product_of(const Gemm& args);
/// The op that the epilogue stands for, on rows of the product.
void run_epilogue(Context& context, const Gemm& args, std::int64_t first, std::int64_t count);
/// The product, then the op that its epilogue stands for.
void gemm_unfused(Context& context, const Gemm& args, Sizes sizes);
ProductKey key_of(const GemmGpuArgs& args);
/// By the kernel chosen.
void gemm_on_gpu(Context& context, const Gemm& args, Sizes sizes, const GemmGpuKernels* chosen);
/// By a kernel of `table`, which must serve it; `multiprocessors`, if not 0: for tests.
void gemm_by_table(Context& context, const Gemm& args, Sizes sizes, const GemmGpuKernels& table,
                   int multiprocessors = 0);
GemmGpuArgs gpu_args(const Context& context, const Gemm& args, Sizes sizes);

/// What gemm_missing_library says of this library's table, which may be null.
std::string missing_library(const GemmGpuKernels* library);

/// Whether oneDNN multiplies bf16 with the CPU's own instructions, and with those for whole tiles
/// (AMX), which do several times what a vector of pairs does.
bool library_multiplies_bf16();
bool library_multiplies_bf16_tiles();
/// By a oneDNN primitive of the operands' type, bf16 or (for tests on any CPU) f32.
void gemm_by_primitive(Context& context, const Gemm& args, Sizes sizes);
/// bf16 operands widened block by block, then multiplied in f32: right on any CPU, and slower.
void gemm_by_panels(Context& context, const Gemm& args, Sizes sizes);
/// The same for operands of any kind.
struct Panel {
  std::int64_t row, rows, column, columns;  ///< of a matrix as it is stored
};
struct PanelProduct {
  Sizes sizes;
  TensorView c_MN;  ///< f32, or bf16, rounded once
  bool transpose_a, transpose_b, accumulate;
  ConstTensorView bias_N;  ///< bf16, or nothing
  /// Fills a dense f32 panel with part of a stored matrix; `state` is passed on.
  using Widen = void (*)(Context&, const void* state, float* panel, const Panel& of);
  Widen widen_a, widen_b;
  const void *a, *b;
};
void multiply_by_panels(Context& context, const PanelProduct& product);

/// What a product has to do at least, its epilogue included.
OpWork work_of(const Gemm& args, Sizes sizes);

/// c[r, :] = bias for each row.
void fill_with_bias(Context& context, TensorView c_MN, ConstTensorView bias_N);
const GemmKernels& kernels(const Context& context);

}  // namespace trireme::gemm_internal
