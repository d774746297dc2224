// The product on a GPU: which of the tables that this program has serves it.

#include <algorithm>

#include "base/math.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/gpu_info.h"
#include "kernels/common/gpu_scratch.h"
#include "kernels/common/measure_kernel.h"
#include "kernels/gemm/gemm_internal.h"

namespace trireme::gemm_internal {
namespace {

constexpr std::size_t kWorkspaceAlignment = gpu_scratch::kProductAlignment;

void run(Context& context, GemmGpuArgs args, const GemmGpuKernels& table) {
  args.workspace = workspace_of(context, table.workspace_bytes);
  table.multiply(args);
}

/// The kernel's table on this GPU; null where there is none.
const GemmGpuKernels* table_of(const GpuTables& tables, const gpu::Info& info,
                               ProductKernel kernel) {
  switch (kernel) {
    case ProductKernel::kOwn:
      return tables.own;
    case ProductKernel::kHopper:
      return runs_sm90a(info) ? tables.hopper : nullptr;
    case ProductKernel::kLibrary:
      return tables.library;
    case ProductKernel::kUnfused:
    case ProductKernel::kTriple:
    case ProductKernel::kSplit:
      break;
  }
  return nullptr;
}

}  // namespace

void* workspace_of(Context& context, std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const auto begin = reinterpret_cast<std::uintptr_t>(context.scratch(bytes + kWorkspaceAlignment));
  return reinterpret_cast<void*>(round_up(begin, kWorkspaceAlignment));
}

std::optional<ProductChoice> measure_ways(Context& context, const ProductWays& ways) {
  if (std::count_if(ways.begin(), ways.end(), [](const auto& way) { return bool{way}; }) < 2)
    return std::nullopt;
  ProductChoice choice;
  double best = 0;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    if (!ways[i]) continue;
    const double time = choice.microseconds[i] = measure_kernel(context, ways[i]);
    if (best > 0 && time >= best) continue;
    best = time;
    choice.kernel = static_cast<ProductKernel>(i);
  }
  return choice;
}

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
          .multiprocessors = context.multiprocessors(),
          .workspace = nullptr};
}

GpuTables gpu_tables() {
  const GpuKernels& kernels = gpu_kernels();
  return {&gpu_table("gemm", &GpuKernels::gemm), kernels.gemm_sm90, kernels.gemm_cublaslt};
}

const GemmGpuKernels* choose_kernel(const GpuTables& tables, const gpu::Info& info,
                                    const GemmGpuArgs& args) {
  // Hopper's tiles have 128 rows, one a multiprocessor: below half of those, smaller are faster.
  const GemmGpuKernels* const wgmma = table_of(tables, info, ProductKernel::kHopper);
  const bool hopper = wgmma != nullptr &&
                      2 * ceil_div(args.m, 128) * ceil_div(args.n, 128) >= info.multiprocessors &&
                      wgmma->serves(args);
  // With an epilogue the library would need a second pass over memory. Without one it is the
  // measure of ours, and taken until a measurement says otherwise.
  if (hopper && args.epilogue != GemmEpilogue::kNone) return wgmma;
  if (tables.library != nullptr && tables.library->serves(args)) return tables.library;
  if (hopper) return wgmma;
  return tables.own->serves(args) ? tables.own : nullptr;
}

ProductKey key_of(const GemmGpuArgs& args) {
  return {args.m,
          args.n,
          args.k,
          args.transpose_a,
          args.transpose_b,
          args.accumulate,
          args.bias != nullptr,
          args.type,
          args.c_type,
          args.epilogue};
}

const GemmGpuKernels* chosen_kernel(const GpuTables& tables, const gpu::Info& info,
                                    const GemmGpuArgs& args, const KernelChoices& choices) {
  const ProductChoice* choice = choices.find(key_of(args));
  if (choice == nullptr) return nullptr;
  const GemmGpuKernels* table = table_of(tables, info, choice->kernel);
  return table != nullptr && table->serves(args) ? table : nullptr;
}

namespace {

/// Gives the product a choice, where there are several.
void measure(Context& context, const GpuTables& tables, const Gemm& args, Sizes sizes,
             KernelChoices& choices) {
  const GemmGpuArgs raw = gpu_args(context, args, sizes);
  ProductWays ways;
  for (int i = 0; i < kProductKernelCount; ++i) {
    const auto kernel = static_cast<ProductKernel>(i);
    const GemmGpuKernels* table = table_of(tables, info_of(context), kernel);
    if (table != nullptr && table->serves(raw)) {
      ways[static_cast<std::size_t>(i)] = [&context, raw, table] { run(context, raw, *table); };
    } else if (kernel == ProductKernel::kUnfused && raw.epilogue != GemmEpilogue::kNone) {
      ways[static_cast<std::size_t>(i)] = [&context, &args, sizes] {
        gemm_unfused(context, args, sizes);
      };
    }
  }
  if (const std::optional<ProductChoice> choice = measure_ways(context, ways))
    choices.add(key_of(raw), *choice);
}

}  // namespace

const GemmGpuKernels* choose_kernel(Context& context, const Gemm& args, Sizes sizes) {
  if (!context.on_gpu()) return nullptr;
  const GpuTables tables = gpu_tables();
  const gpu::Info& info = info_of(context);
  const GemmGpuArgs raw = gpu_args(context, args, sizes);
  // Ours adds along K in one order, whatever its tiles.
  if (context.batch_invariant()) return tables.own->serves(raw) ? tables.own : nullptr;
  if (KernelChoices* choices = context.kernel_choices(); choices != nullptr) {
    const ProductKey key = key_of(raw);
    const ProductChoice* choice = choices->find(key);
    const bool empty = sizes.m == 0 || sizes.n == 0 || sizes.k == 0;
    if (choice == nullptr && choices->measuring() && !empty) {
      measure(context, tables, args, sizes, *choices);
      choice = choices->find(key);
    }
    const bool unfused = choice != nullptr && choice->kernel == ProductKernel::kUnfused;
    if (unfused && args.epilogue != GemmEpilogue::kNone) return nullptr;
    if (const GemmGpuKernels* table = chosen_kernel(tables, info, raw, *choices)) return table;
  }
  return choose_kernel(tables, info, raw);
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

std::int64_t gemm_gpu_library_version() {
  const GemmGpuKernels* library = gpu_kernels().gemm_cublaslt;
  return library == nullptr || library->version == nullptr ? 0 : library->version();
}

}  // namespace trireme
