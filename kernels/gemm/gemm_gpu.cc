// The product on a GPU: which of the tables that this program has serves it.

#include "base/math.h"
#include "kernels/common/dispatch.h"
#include "kernels/gemm/gemm_internal.h"

namespace trireme::gemm_internal {
namespace {

/// A memo: asking a driver for a GPU's properties takes longer than a product.
const gpu::Info& info_of(const Context& context) {
  thread_local int known = -1;
  thread_local gpu::Info info;
  if (known != context.device().index) {
    info = gpu::info(context.device().index);
    known = context.device().index;
  }
  return info;
}

void run(Context& context, GemmGpuArgs args, const GemmGpuKernels& table) {
  constexpr std::size_t kAlignment = 256;
  if (table.workspace_bytes > 0) {
    const auto begin =
        reinterpret_cast<std::uintptr_t>(context.scratch(table.workspace_bytes + kAlignment));
    args.workspace = reinterpret_cast<void*>(round_up(begin, kAlignment));
  }
  table.multiply(args);
}

}  // namespace

GemmGpuArgs gpu_args(const Context& context, const Gemm& args, Sizes s) {
  return {.exec = context.exec(),
          .c = args.c_MN.data,
          .a = args.a.data,
          .b = args.b.data,
          .bias = args.bias_N.data,
          .operand = args.operand.data,
          .saved = args.saved.data,
          .m = s.m,
          .n = s.n,
          .k = s.k,
          .transpose_a = args.transpose_a == Transpose::kYes,
          .transpose_b = args.transpose_b == Transpose::kYes,
          .accumulate = args.accumulate == Accumulate::kYes,
          .type = args.a.dtype,
          .c_type = args.c_MN.dtype,
          .epilogue = args.epilogue,
          .multiprocessors = info_of(context).multiprocessors,
          .workspace = nullptr};
}

GpuTables gpu_tables() {
  const GpuKernels& kernels = gpu_kernels();
  return {&gpu_table("gemm", &GpuKernels::gemm), kernels.gemm_sm90, kernels.gemm_cublaslt};
}

const GemmGpuKernels* choose_kernel(const GpuTables& tables, const gpu::Info& info,
                                    const GemmGpuArgs& args) {
  // Hopper's instructions are not in its successors. Its tiles are 128 rows high, one to a
  // multiprocessor: where they are fewer than half of those, smaller tiles finish sooner.
  const bool hopper = tables.hopper != nullptr && info.capability == 90 &&
                      2 * ceil_div(args.m, 128) * ceil_div(args.n, 128) >= info.multiprocessors &&
                      tables.hopper->serves(args);
  // With an epilogue the library would need a second pass over memory. Without one it is the
  // measure of ours, and taken until a measurement says otherwise.
  if (hopper && args.epilogue != GemmEpilogue::kNone) return tables.hopper;
  if (tables.library != nullptr && tables.library->serves(args)) return tables.library;
  if (hopper) return tables.hopper;
  return tables.own->serves(args) ? tables.own : nullptr;
}

const GemmGpuKernels* choose_kernel(const Context& context, const Gemm& args, Sizes sizes) {
  if (!context.on_gpu()) return nullptr;
  return choose_kernel(gpu_tables(), info_of(context), gpu_args(context, args, sizes));
}

void gemm_on_gpu(Context& context, const Gemm& args, Sizes sizes, const GemmGpuKernels* chosen) {
  expect(chosen != nullptr, "no kernel for a product of [{}, {}] and [{}, {}]", sizes.m, sizes.k,
         sizes.k, sizes.n);
  run(context, gpu_args(context, args, sizes), *chosen);
}

std::string missing_library(const GemmGpuKernels* library) {
  const char* problem =
      library == nullptr || library->missing == nullptr ? nullptr : library->missing();
  if (problem == nullptr) return "";
  return "cuBLASLt is not used (" + std::string(problem) +
         "): products that no activation follows (the gradients of linear layers, attention's "
         "projections, the head) run by this program's own kernels, which may be slower. Install "
         "cuBLAS of the CUDA toolkit, or name its folder in LD_LIBRARY_PATH";
}

void gemm_by_table(Context& context, const Gemm& args, Sizes sizes, const GemmGpuKernels& table,
                   int multiprocessors) {
  GemmGpuArgs raw = gpu_args(context, args, sizes);
  if (multiprocessors > 0) raw.multiprocessors = multiprocessors;
  expect(table.serves(raw), "this table does not serve the product");
  const OpSpan span(context.op_trace(), args.use, work_of(args, sizes));
  run(context, raw, table);
}

}  // namespace trireme::gemm_internal

namespace trireme {

std::string gemm_missing_library() {
  return gemm_internal::missing_library(gpu_kernels().gemm_cublaslt);
}

}  // namespace trireme
