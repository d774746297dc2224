// The quantised product on a GPU.

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/math.h"
#include "kernels/common/gpu_info.h"
#include "kernels/common/gpu_kernels.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/gemm_quantized_internal.h"
#include "kernels/gemm/gemm_quantized_scales.h"

namespace trireme {
namespace gemm_quantized_internal {
namespace {

std::string words_of(const QuantizedGemm& args) {
  return fmt::format("a product of [{}, {}] {} (scales of {} x {}) and [{}, {}] {} ({} x {})",
                     args.a.rows.size(), args.a.columns.size(), name_of(args.a.format()),
                     args.a.rows.block, args.a.columns.block, args.b.rows.size(),
                     args.b.columns.size(), name_of(args.b.format()), args.b.rows.block,
                     args.b.columns.block);
}

/// Sums of no terms: gradients of weights for no tokens.
void add_nothing(Context& context, const QuantizedGemm& args) {
  expect(!args.bias_N.given() && args.epilogue == GemmEpilogue::kNone,
         "no kernel of this GPU serves {}", words_of(args));
  if (args.accumulate == Accumulate::kNo) clear(context, args.c_MN);
}

/// The kernel's table; null where there is none.
const GemmQuantizedGpuKernels* table_of(const GpuTables& tables, ProductKernel kernel) {
  if (kernel == ProductKernel::kHopper) return tables.own;
  if (kernel == ProductKernel::kTriple) return tables.triple;
  if (kernel == ProductKernel::kSplit) return tables.split;
  return kernel == ProductKernel::kLibrary ? tables.library : nullptr;
}

bool leaves_maxima(const GemmQuantizedGpuKernels& table, const GemmQuantizedGpuArgs& args) {
  return table.leaves_maxima != nullptr && table.leaves_maxima(args);
}

/// cuBLASLt may refuse a product of which it offered a kernel: then it has none.
bool multiplies(Context& context, const QuantizedGemm& args, const GemmQuantizedGpuKernels& table) {
  try {
    gemm_by_table(context, args, table);
  } catch (const EnvironmentError&) {
    return false;
  }
  return true;
}

/// Gives the product a choice, where there are several ways to it.
void measure(Context& context, const GpuTables& tables, const QuantizedGemm& args,
             const GemmQuantizedGpuArgs& raw, KernelChoices& choices) {
  gemm_internal::ProductWays ways;
  for (const ProductKernel kernel : {ProductKernel::kHopper, ProductKernel::kTriple,
                                     ProductKernel::kSplit, ProductKernel::kLibrary}) {
    const GemmQuantizedGpuKernels* table = table_of(tables, kernel);
    if (table == nullptr || !table->serves(raw)) continue;
    if (kernel == ProductKernel::kLibrary && !multiplies(context, args, *table)) continue;
    ways[static_cast<std::size_t>(kernel)] = [&context, &args, table] {
      gemm_by_table(context, args, *table);
    };
  }
  if (args.epilogue != GemmEpilogue::kNone) {
    ways[static_cast<std::size_t>(ProductKernel::kUnfused)] = [&context, &args] {
      gemm_unfused(context, args);
    };
  }
  if (const std::optional<ProductChoice> choice = gemm_internal::measure_ways(context, ways))
    choices.add(key_of(raw), *choice);
}

QuantizedProductKey::Parts sizes_of(const ScalesGpu& scales) {
  QuantizedProductKey::Parts sizes{};
  std::copy_n(scales.sizes, scales.parts, sizes.begin());
  return sizes;
}

}  // namespace

ScalesGpu scales_of(const ConstTensorView& scales, const ScaleDim& rows, const ScaleDim& columns) {
  ScalesGpu out{};
  out.scales = reinterpret_cast<const float*>(scales.data);
  out.columns = columns.blocks();
  out.row_block = rows.block;
  out.column_block = columns.block;
  for (const ScaleDim::Part& part : rows.given_parts()) {
    if (part.size == 0) continue;
    out.sizes[out.parts] = part.size;
    out.offsets[out.parts++] = part.offset;
  }
  return out;
}

int ends_of_parts(const ScaleDim& k, std::int64_t (&ends)[ScalesGpu::kPartsMax]) {
  int parts = 0;
  std::int64_t end = 0;
  for (const ScaleDim::Part& part : k.given_parts()) {
    if (part.size == 0) continue;
    end += ScaleDim::padded_size_of(part) / ScaleDim::kAlignment;
    ends[parts++] = end;
  }
  return parts;
}

GemmQuantizedGpuArgs gpu_args(const Context& context, const QuantizedGemm& args) {
  GemmQuantizedGpuArgs raw{};
  raw.product = {.exec = context.exec(),
                 .c = args.c_MN.data,
                 .a = args.a.codes.data,
                 .b = args.b.codes.data,
                 .bias = args.bias_N.data,
                 .operand = args.operand.data,
                 .saved = args.saved.data,
                 .m = args.a.rows.size(),
                 .n = args.b.rows.size(),
                 .k = args.a.columns.padded_size(),
                 .transpose_a = false,
                 .transpose_b = true,
                 .accumulate = args.accumulate == Accumulate::kYes,
                 .type = DType::kBF16,
                 .c_type = args.c_MN.dtype,
                 .epilogue = args.epilogue,
                 .multiprocessors = context.multiprocessors(),
                 .workspace = nullptr};
  raw.format_a = args.a.format();
  raw.format_b = args.b.format();
  raw.a = scales_of(args.a.scales, args.a.rows, args.a.columns);
  raw.b = scales_of(args.b.scales, args.b.rows, args.b.columns);
  raw.k_parts = ends_of_parts(args.a.columns, raw.k_ends);
  raw.precise_sums = args.precise_sums;
  return raw;
}

void gemm_by_table(Context& context, const QuantizedGemm& args,
                   const GemmQuantizedGpuKernels& table, int multiprocessors) {
  GemmQuantizedGpuArgs raw = gpu_args(context, args);
  if (multiprocessors > 0) raw.product.multiprocessors = multiprocessors;
  expect(table.serves(raw), "no kernel of this GPU serves {}", words_of(args));
  raw.product.workspace = gemm_internal::workspace_of(context, table.workspace_bytes);
  if (leaves_maxima(table, raw)) raw.amax = reinterpret_cast<std::int32_t*>(args.amax_P.data);
  table.multiply(raw);
}

GpuTables gpu_tables(Device device) {
  const gpu::Info& info = info_of(device);
  const GpuKernels& kernels = gpu_kernels();
  const bool hopper = runs_sm90a(info);
  return {hopper ? kernels.gemm_fp8_sm90 : nullptr,
          multiplies_fp8(info) ? kernels.gemm_fp8_cublaslt : nullptr,
          hopper ? kernels.gemm_fp8_triple_sm90 : nullptr,
          hopper ? kernels.gemm_fp8_split_sm90 : nullptr};
}

QuantizedProductKey key_of(const GemmQuantizedGpuArgs& args) {
  QuantizedProductKey key;
  key.a_rows = sizes_of(args.a);
  key.b_rows = sizes_of(args.b);
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(args.k_parts); ++i) {
    key.k[i] = (args.k_ends[i] - begin) * ScaleDim::kAlignment;
    begin = args.k_ends[i];
  }
  key.a_scales = {args.a.row_block, args.a.column_block};
  key.b_scales = {args.b.row_block, args.b.column_block};
  key.a_format = args.format_a;
  key.b_format = args.format_b;
  key.c_type = args.product.c_type;
  key.accumulate = args.product.accumulate;
  key.bias = args.product.bias != nullptr;
  key.precise_sums = args.precise_sums;
  key.epilogue = args.product.epilogue;
  return key;
}

const GemmQuantizedGpuKernels* choose_kernel(const GpuTables& tables,
                                             const GemmQuantizedGpuArgs& args) {
  for (const GemmQuantizedGpuKernels* table : {tables.own, tables.library})
    if (table != nullptr && table->serves(args)) return table;
  return nullptr;
}

const GemmQuantizedGpuKernels* chosen_kernel(const GpuTables& tables,
                                             const GemmQuantizedGpuArgs& args,
                                             const KernelChoices& choices) {
  const ProductChoice* choice = choices.find(key_of(args));
  if (choice == nullptr) return nullptr;
  const GemmQuantizedGpuKernels* table = table_of(tables, choice->kernel);
  return table != nullptr && table->serves(args) ? table : nullptr;
}

const GemmQuantizedGpuKernels* choose_kernel(Context& context, const QuantizedGemm& args) {
  const GpuTables tables = gpu_tables(context.device());
  const GemmQuantizedGpuArgs raw = gpu_args(context, args);
  KernelChoices* choices = context.batch_invariant() ? nullptr : context.kernel_choices();
  if (choices != nullptr) {
    const QuantizedProductKey key = key_of(raw);
    const ProductChoice* choice = choices->find(key);
    if (choice == nullptr && choices->measuring()) {
      measure(context, tables, args, raw, *choices);
      choice = choices->find(key);
    }
    const bool unfused = choice != nullptr && choice->kernel == ProductKernel::kUnfused;
    if (unfused && args.epilogue != GemmEpilogue::kNone) return nullptr;
    if (const GemmQuantizedGpuKernels* table = chosen_kernel(tables, raw, *choices)) return table;
  }
  return choose_kernel(tables, raw);
}

GemmQuantizedGpuArgs sample_product() {
  constexpr std::int64_t kSize = 128;
  const ScaleDim whole(kSize, 0);
  GemmQuantizedGpuArgs raw{};
  raw.product.m = raw.product.n = raw.product.k = kSize;
  raw.product.type = raw.product.c_type = DType::kBF16;
  raw.format_a = raw.format_b = DType::kF8E4M3;
  raw.a = raw.b = scales_of({}, whole, whole);
  raw.k_parts = ends_of_parts(whole, raw.k_ends);
  return raw;
}

bool gemm_on_gpu(Context& context, const QuantizedGemm& args,
                 const GemmQuantizedGpuKernels* chosen) {
  if (args.a.columns.padded_size() == 0) {
    add_nothing(context, args);
    return false;
  }
  if (chosen == nullptr && gpu_tables(context.device()).own == nullptr) {
    throw EnvironmentError(
        "cuBLASLt has no kernel on this GPU for {}. Set precision.compute \"bf16\"",
        words_of(args));
  }
  expect(chosen != nullptr, "no kernel of this GPU serves {}", words_of(args));
  gemm_by_table(context, args, *chosen);
  return leaves_maxima(*chosen, gpu_args(context, args));
}

}  // namespace gemm_quantized_internal

std::string gemm_quantized_missing(int capability, std::int64_t block) {
  if (!multiplies_fp8(capability))
    return "its tensor cores have no fp8, which begins at compute capability 8.9";
  if (block != 0 && !runs_sm90a(capability))
    return "products of blocks have kernels for compute capability 9.0 alone";
  return "";
}

std::string gemm_quantized_missing(Device device, std::int64_t block) {
  if (device.kind == DeviceKind::kCpu) return "";
  const gemm_quantized_internal::GpuTables tables = gemm_quantized_internal::gpu_tables(device);
  if (tables.own != nullptr) return "";
  std::string missing = gemm_quantized_missing(info_of(device).capability, block);
  if (!missing.empty()) return missing;
  if (block != 0) return "this build has no code for sm_90a, which multiplies blocks";
  const GemmGpuKernels* const library = gpu_kernels().gemm_cublaslt;
  if (tables.library == nullptr || library == nullptr)
    return "this build has no cuBLASLt, which multiplies there";
  if (const char* problem = library->missing(); problem != nullptr)
    return fmt::format(
        "cuBLASLt, which multiplies there, cannot be used ({}; cuBLAS of the CUDA toolkit has it, "
        "in a folder that LD_LIBRARY_PATH may name)",
        problem);
  if (tables.library->serves(gemm_quantized_internal::sample_product())) return "";
  return fmt::format(
      "cuBLASLt {} has no such products for it (Ada has them since CUDA 12.1 Update 1, Blackwell "
      "since 12.8)",
      library->version());
}

}  // namespace trireme
