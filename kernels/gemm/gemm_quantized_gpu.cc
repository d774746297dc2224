// The quantised product on a GPU.

#include <fmt/format.h>

#include <string>

#include "base/math.h"
#include "kernels/common/gpu_kernels.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gelu/gelu.h"
#include "kernels/gemm/gemm_quantized_internal.h"
#include "kernels/glu/glu.h"

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

const GemmQuantizedGpuKernels* table_for(int capability) {
  // Its instructions are not in Hopper's successors.
  return capability == 90 ? gpu_kernels().gemm_fp8_sm90 : nullptr;
}

const GemmQuantizedGpuKernels* table_of(const Context& context) {
  thread_local int known = -1, capability = 0;
  if (known != context.device().index) {
    capability = gpu::info(context.device().index).capability;
    known = context.device().index;
  }
  return table_for(capability);
}

/// A sum of nothing.
bool without_terms(Context& context, const QuantizedGemm& args) {
  if (args.c_MN.count() == 0) return true;
  if (args.a.columns.padded_size() > 0) return false;
  if (args.accumulate == Accumulate::kYes) return true;
  if (args.bias_N.given() || args.epilogue != GemmEpilogue::kNone) return false;
  clear(context, args.c_MN);
  return true;
}

std::string words_of(const QuantizedGemm& args) {
  return fmt::format("a product of [{}, {}] {} (scales of {} x {}) and [{}, {}] {} ({} x {})",
                     args.a.rows.size(), args.a.columns.size(), name_of(args.a.format()),
                     args.a.rows.block, args.a.columns.block, args.b.rows.size(),
                     args.b.columns.size(), name_of(args.b.format()), args.b.rows.block,
                     args.b.columns.block);
}

/// The product where the op that follows it takes it from; then that op.
void multiply_unfused(Context& context, const QuantizedGemm& args) {
  const bool backward = is_glu_backward(args.epilogue);
  const bool silu =
      args.epilogue == GemmEpilogue::kSwiglu || args.epilogue == GemmEpilogue::kSwigluBackward;
  const GluGate gate = silu ? GluGate::kSilu : GluGate::kGelu;
  QuantizedGemm product = args;
  product.c_MN = args.saved;
  product.epilogue = GemmEpilogue::kNone;
  product.operand = {};
  product.saved = {};
  gemm_on_gpu(context, product);
  if (backward) {
    glu_backward(context, gate, args.c_MN, args.saved, args.operand, args.saved);
  } else {
    glu_forward(context, gate, args.c_MN, args.saved);
  }
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
  expect(table.serves(raw), "this table does not serve {}", words_of(args));
  table.multiply(raw);
}

void gemm_on_gpu(Context& context, const QuantizedGemm& args) {
  if (without_terms(context, args)) return;
  const GemmQuantizedGpuKernels* table = table_of(context);
  expect(table != nullptr, "no kernel of this GPU serves {}", words_of(args));
  const GemmQuantizedGpuArgs raw = gpu_args(context, args);
  if (table->serves(raw)) return table->multiply(raw);
  expect(is_glu(args.epilogue) || is_glu_backward(args.epilogue), "no kernel of this GPU serves {}",
         words_of(args));
  multiply_unfused(context, args);
}

}  // namespace gemm_quantized_internal
}  // namespace trireme
