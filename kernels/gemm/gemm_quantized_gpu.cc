// The quantised product on a GPU.

#include <fmt/format.h>

#include <string>

#include "base/math.h"
#include "kernels/common/gpu_info.h"
#include "kernels/common/gpu_kernels.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/gemm_quantized_internal.h"

namespace trireme {
namespace gemm_quantized_internal {
namespace {

/// Those that have indices.
template <class F>
void each_part(const ScaleDim& dim, F f) {
  for (int i = 0; i < dim.part_count; ++i)
    if (const ScaleDim::Part& part = dim.parts[static_cast<std::size_t>(i)]; part.size > 0) f(part);
}

ScalesGpu scales_of(const ConstQuantizedView& view) {
  ScalesGpu scales{};
  scales.scales = reinterpret_cast<const float*>(view.scales.data);
  scales.columns = view.columns.blocks();
  scales.row_block = view.rows.block;
  scales.column_block = view.columns.block;
  each_part(view.rows, [&](const ScaleDim::Part& part) {
    scales.sizes[scales.parts] = part.size;
    scales.offsets[scales.parts++] = part.offset;
  });
  return scales;
}

/// Null where the GPU has no kernels for fp8.
const GemmQuantizedGpuKernels* table_of(Device device) {
  return runs_sm90a(info_of(device)) ? gpu_kernels().gemm_fp8_sm90 : nullptr;
}

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

/// The product where the op that follows it takes it from; then that op.
void multiply_unfused(Context& context, const QuantizedGemm& args,
                      const GemmQuantizedGpuKernels& table) {
  const Gemm like = without_operands(args);
  QuantizedGemm product = args;
  product.c_MN = gemm_internal::product_of(like);
  product.epilogue = GemmEpilogue::kNone;
  product.operand = {};
  product.saved = {};
  gemm_by_table(context, product, table);
  gemm_internal::run_epilogue(context, like, 0, args.a.rows.size());
}

}  // namespace

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
  raw.a = scales_of(args.a);
  raw.b = scales_of(args.b);
  std::int64_t end = 0;
  each_part(args.a.columns, [&](const ScaleDim::Part& part) {
    end += ScaleDim::padded_size_of(part) / ScaleDim::kAlignment;
    raw.k_ends[raw.k_parts++] = end;
  });
  raw.precise_sums = args.precise_sums;
  return raw;
}

void gemm_by_table(Context& context, const QuantizedGemm& args,
                   const GemmQuantizedGpuKernels& table, int multiprocessors) {
  GemmQuantizedGpuArgs raw = gpu_args(context, args);
  if (multiprocessors > 0) raw.product.multiprocessors = multiprocessors;
  expect(table.serves(raw), "no kernel of this GPU serves {}", words_of(args));
  table.multiply(raw);
}

void gemm_on_gpu(Context& context, const QuantizedGemm& args) {
  if (args.a.columns.padded_size() == 0) return add_nothing(context, args);
  const GemmQuantizedGpuKernels* table = table_of(context.device());
  expect(table != nullptr, "this GPU has no kernel for {}", words_of(args));
  if (args.epilogue == GemmEpilogue::kNone || table->serves(gpu_args(context, args)))
    return gemm_by_table(context, args, *table);
  multiply_unfused(context, args, *table);
}

}  // namespace gemm_quantized_internal

bool gemm_quantized_serves(Device device) {
  return device.kind == DeviceKind::kCpu || gemm_quantized_internal::table_of(device) != nullptr;
}

}  // namespace trireme
