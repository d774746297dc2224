// gemm in its uses: the three products of each linear layer and of the head, and those of fp8.

#include <algorithm>

#include "bench/op_bench.h"
#include "kernels/common/gpu_kernels.h"
#include "kernels/gemm/gemm_internal.h"
#include "kernels/gemm/gemm_quantized_internal.h"
#include "kernels/grouped_gemm/grouped_gemm_internal.h"
#include "kernels/grouped_gemm/grouped_gemm_quantized.h"
#include "kernels/quantize/quantize_segments.h"

namespace trireme::bench {
namespace {

/// Input and output features.
using SizeOf = std::function<std::pair<std::int64_t, std::int64_t>(const Size&)>;

/// y [T, N] = x [T, K] W^T, W [N, K], and its gradients. The head works on chunks of rows, and its
/// logits are fp32.
void add_linear(const std::string& name, bool head, const SizeOf& size_of) {
  const auto rows_of = [head](const Size& size) {
    return head ? std::min<std::int64_t>(size.rows(), 512) : size.rows();
  };
  add_op("gemm_" + name + "_forward", kBothTypes, [=](Operands& operands) {
    const auto [in, out] = size_of(operands.size);
    const std::int64_t rows = rows_of(operands.size);
    Gemm args;
    args.c_MN = head ? operands.f32({rows, out}) : operands.typed({rows, out});
    args.a = operands.typed({rows, in});
    args.b = operands.typed({out, in});
    args.transpose_b = Transpose::kYes;
    return [args](Context& context) { gemm(context, args); };
  });
  add_op("gemm_" + name + "_input_gradient", kBothTypes, [=](Operands& operands) {
    const auto [in, out] = size_of(operands.size);
    const std::int64_t rows = rows_of(operands.size);
    Gemm args;
    args.c_MN = operands.typed({rows, in});
    args.a = operands.typed({rows, out});
    args.b = operands.typed({out, in});
    return [args](Context& context) { gemm(context, args); };
  });
  add_op("gemm_" + name + "_weight_gradient", kBothTypes, [=](Operands& operands) {
    const auto [in, out] = size_of(operands.size);
    const std::int64_t rows = rows_of(operands.size);
    Gemm args;
    args.c_MN = operands.f32({out, in});
    args.a = operands.typed({rows, out});
    args.b = operands.typed({rows, in});
    args.transpose_a = Transpose::kYes;
    return [args](Context& context) { gemm(context, args); };
  });
}

/// Experts of a quarter of the ffn that share the rows evenly, beside one product of the same work.
void add_experts(std::int64_t experts) {
  const std::string name = "grouped_gemm_" + std::to_string(experts);
  add_op(name + "_forward", kBothTypes, [=](Operands& operands) {
    const std::int64_t rows = operands.size.rows(), in = operands.size.hidden,
                       out = operands.size.ffn / 4;
    GroupedGemm args;
    args.c_RN = operands.typed({rows, out});
    args.a_RK = operands.typed({rows, in});
    args.b = operands.typed({experts, out, in});
    args.transpose_b = Transpose::kYes;
    args.begins = operands.begins(experts);
    return [args](Context& context) { grouped_gemm(context, args); };
  });
  add_op(name + "_input_gradient", kBothTypes, [=](Operands& operands) {
    const std::int64_t rows = operands.size.rows(), in = operands.size.hidden,
                       out = operands.size.ffn / 4;
    GroupedGemm args;
    args.c_RN = operands.typed({rows, in});
    args.a_RK = operands.typed({rows, out});
    args.b = operands.typed({experts, out, in});
    args.begins = operands.begins(experts);
    return [args](Context& context) { grouped_gemm(context, args); };
  });
  add_op(name + "_weight_gradient", kBothTypes, [=](Operands& operands) {
    const std::int64_t rows = operands.size.rows(), in = operands.size.hidden,
                       out = operands.size.ffn / 4;
    GroupedGemmWeights args;
    args.c_GMN = operands.f32({experts, out, in});
    args.a_RM = operands.typed({rows, out});
    args.b_RN = operands.typed({rows, in});
    args.begins = operands.begins(experts);
    return [args](Context& context) { grouped_gemm_weights(context, args); };
  });
}

/// Rows of a rank that has experts of DeepSeek-V3, of which only hidden, ffn and rows count.
constexpr Size kExpertRows[] = {{"V3-4k", 1, 128, 128, 7168, 2048, 4096, 1, 129280},
                                {"V3-64k", 1, 128, 128, 7168, 2048, 65536, 1, 129280}};

/// gate's and up's products by one of a GPU's tables.
void add_expert_kernel(const std::string& kernel, std::int64_t experts,
                       const GroupedGemmGpuKernels& table) {
  const std::string name = "experts_" + std::to_string(experts) + "_by_" + kernel;
  const auto work_of = [](const Size& size) {
    return OpWork{4 * size.rows() * size.hidden * size.ffn, 0, DType::kBF16};
  };
  for (const bool forward : {true, false}) {
    add_op_of(kExpertRows, name + (forward ? "_forward" : "_input"), {DType::kBF16},
              [=, &table](Operands& operands) {
                const Size& size = operands.size;
                const std::int64_t rows = size.rows(), in = size.hidden, out = 2 * size.ffn;
                GroupedGemm args;
                args.c_RN = operands.typed({rows, forward ? out : in});
                args.a_RK = operands.typed({rows, forward ? in : out});
                args.b = operands.typed({experts, out, in});
                args.transpose_b = forward ? Transpose::kYes : Transpose::kNo;
                args.begins = operands.begins(experts);
                return [=, &table, work = work_of(size)](Context& context) {
                  const OpSpan span(context.op_trace(), args.use, work);
                  table.multiply(grouped_gemm_internal::gpu_args(context, args));
                };
              });
  }
  add_op_of(kExpertRows, name + "_weight", {DType::kBF16}, [=, &table](Operands& operands) {
    const Size& size = operands.size;
    GroupedGemmWeights args;
    args.c_GMN = operands.f32({experts, 2 * size.ffn, size.hidden});
    args.a_RM = operands.typed({size.rows(), 2 * size.ffn});
    args.b_RN = operands.typed({size.rows(), size.hidden});
    args.begins = operands.begins(experts);
    args.accumulate = Accumulate::kYes;
    return [=, &table, work = work_of(size)](Context& context) {
      const OpSpan span(context.op_trace(), args.use, work);
      table.weights(grouped_gemm_internal::gpu_args(context, args));
    };
  });
}

/// Rows of experts in fp8, in blocks.
QuantizedSegments segments(Operands& operands, std::int64_t experts, const ScaleDim& columns,
                           bool across) {
  const std::int64_t rows = operands.size.rows();
  return {operands.codes(QuantizedSegments::codes_shape(rows, experts, columns, across)),
          operands.f32(QuantizedSegments::scales_shape(rows, experts, columns, across)), columns,
          across};
}

/// The same of fp8 operands, and the rows that become such.
void add_quantized_experts(std::int64_t experts) {
  const std::string name = "experts_" + std::to_string(experts) + "_fp8";
  const auto dim = [](std::int64_t size) { return ScaleDim(size, 128); };
  for (const bool forward : {true, false}) {
    add_op_of(kExpertRows, name + (forward ? "_forward" : "_input"), {DType::kBF16},
              [=](Operands& operands) {
                const std::int64_t hidden = operands.size.hidden, up = 2 * operands.size.ffn;
                const ScaleDim n = dim(forward ? up : hidden), k = dim(forward ? hidden : up);
                QuantizedGroupedGemm args;
                args.c_RN = operands.typed({operands.size.rows(), n.size()});
                args.a = segments(operands, experts, k, false);
                args.b = {operands.codes({experts, n.size(), k.size()}),
                          operands.f32({experts, n.blocks(), k.blocks()}), n, k, true};
                args.begins = operands.begins(experts);
                return [args](Context& context) { grouped_gemm_quantized(context, args); };
              });
  }
  add_op_of(kExpertRows, name + "_weight", {DType::kBF16}, [=](Operands& operands) {
    const ScaleDim m = dim(2 * operands.size.ffn), n = dim(operands.size.hidden);
    QuantizedGroupedGemmWeights args;
    args.c_GMN = operands.f32({experts, m.size(), n.size()});
    args.a = segments(operands, experts, m, true);
    args.b = segments(operands, experts, n, true);
    args.accumulate = Accumulate::kYes;
    args.begins = operands.begins(experts);
    return [args](Context& context) { grouped_gemm_quantized_weights(context, args); };
  });
  for (const bool across : {false, true}) {
    add_op_of(kExpertRows, name + (across ? "_rows_across" : "_rows_along"), {DType::kBF16},
              [=](Operands& operands) {
                const ScaleDim columns = dim(operands.size.hidden);
                QuantizeSegments args;
                args.out = segments(operands, experts, columns, across);
                args.x = operands.typed({operands.size.rows(), columns.size()});
                args.begins = operands.begins(experts);
                return [args](Context& context) { quantize_segments(context, args); };
              });
  }
}

/// gate and up with SwiGLU behind them, down's gradient with SwiGLU's: each in one op.
void add_fused() {
  add_op("gemm_up_swiglu", kBothTypes, [](Operands& operands) {
    const Size& size = operands.size;
    Gemm args;
    args.c_MN = operands.typed({size.rows(), size.ffn});
    args.a = operands.typed({size.rows(), size.hidden});
    args.b = operands.typed({2 * size.ffn, size.hidden});
    args.transpose_b = Transpose::kYes;
    args.epilogue = GemmEpilogue::kSwiglu;
    args.saved = operands.typed({size.rows(), 2 * size.ffn});
    return [args](Context& context) { gemm(context, args); };
  });
  add_op("gemm_down_swiglu_gradient", kBothTypes, [](Operands& operands) {
    const Size& size = operands.size;
    Gemm args;
    args.c_MN = operands.typed({size.rows(), 2 * size.ffn});
    args.a = operands.typed({size.rows(), size.hidden});
    args.b = operands.typed({size.hidden, size.ffn});
    args.epilogue = GemmEpilogue::kSwigluBackward;
    args.operand = operands.typed({size.rows(), 2 * size.ffn});
    args.saved = operands.typed({size.rows(), size.ffn});
    return [args](Context& context) { gemm(context, args); };
  });
}

/// up's three products by each kernel that a GPU has for them: what `choose_kernel` should follow.
void add_kernel(const std::string& kernel, const GemmGpuKernels* table) {
  if (table == nullptr) return;
  for (const int which : {0, 1, 2}) {
    const std::string name = which == 0 ? "forward" : which == 1 ? "input" : "weight";
    add_op("gemm_by_" + kernel + "_" + name, {DType::kBF16}, [=](Operands& operands) {
      const std::int64_t rows = operands.size.rows(), in = operands.size.hidden,
                         out = 2 * operands.size.ffn;
      Gemm args;
      args.a = operands.typed({rows, which == 0 ? in : out});
      args.b = which == 2 ? operands.typed({rows, in}) : operands.typed({out, in});
      args.transpose_a = which == 2 ? Transpose::kYes : Transpose::kNo;
      args.transpose_b = which == 0 ? Transpose::kYes : Transpose::kNo;
      if (which == 2) {
        args.c_MN = operands.f32({out, in});
      } else {
        args.c_MN = operands.typed({rows, which == 0 ? out : in});
      }
      const gemm_internal::Sizes sizes{which == 2 ? out : rows, which == 0 ? out : in,
                                       which == 0   ? in
                                       : which == 1 ? out
                                                    : rows};
      return [=](Context& context) { gemm_internal::gemm_by_table(context, args, sizes, *table); };
    });
  }
}

QuantizedView quantized(Operands& operands, const ScaleDim& rows, const ScaleDim& columns) {
  return {operands.codes(codes_shape(rows, columns, true)),
          operands.f32(scales_shape(rows, columns)), rows, columns, true};
}
ScaleDim gate_and_up(const Size& size, std::int64_t block) {
  ScaleDim out(size.ffn, block);
  out.add({size.ffn, 0});
  return out;
}

/// up's three products of fp8 operands, gate and up quantised apart: blocks of 128, or whole
/// tensors. In a forward product rows share no scale, in the weight's gradient columns share none.
void add_quantized(const std::string& recipe, std::int64_t block) {
  const std::int64_t one = block == 0 ? 0 : 1;
  add_op("gemm_fp8_" + recipe + "_forward", {DType::kBF16}, [=](Operands& operands) {
    const Size& size = operands.size;
    QuantizedGemm args;
    args.c_MN = operands.typed({size.rows(), 2 * size.ffn});
    args.a = quantized(operands, {size.rows(), one}, {size.hidden, block});
    args.b = quantized(operands, gate_and_up(size, block), {size.hidden, block});
    args.precise_sums = block != 0;
    return [args](Context& context) { gemm_quantized(context, args); };
  });
  add_op("gemm_fp8_" + recipe + "_input", {DType::kBF16}, [=](Operands& operands) {
    const Size& size = operands.size;
    QuantizedGemm args;
    args.c_MN = operands.typed({size.rows(), size.hidden});
    args.a = quantized(operands, {size.rows(), one}, gate_and_up(size, block));
    args.b = quantized(operands, {size.hidden, block}, gate_and_up(size, block));
    return [args](Context& context) { gemm_quantized(context, args); };
  });
  add_op("gemm_fp8_" + recipe + "_weight", {DType::kBF16}, [=](Operands& operands) {
    const Size& size = operands.size;
    QuantizedGemm args;
    args.c_MN = operands.f32({2 * size.ffn, size.hidden});
    args.a = quantized(operands, gate_and_up(size, one), {size.rows(), block});
    args.b = quantized(operands, {size.hidden, one}, {size.rows(), block});
    args.accumulate = Accumulate::kYes;
    return [args](Context& context) { gemm_quantized(context, args); };
  });
}

/// A product of what `args_of` gives, by choice or by a table that must serve it.
void add_quantized_op(const std::string& name,
                      const std::function<QuantizedGemm(Operands&)>& args_of,
                      const GemmQuantizedGpuKernels* table = nullptr) {
  add_op("gemm_fp8_" + name, {DType::kBF16}, [=](Operands& operands) {
    return [args = args_of(operands), table](Context& context) {
      if (table == nullptr) return gemm_quantized(context, args);
      const OpSpan span(context.op_trace(), args.use, gemm_quantized_internal::work_of(args));
      gemm_quantized_internal::gemm_by_table(context, args, *table);
    };
  });
}

/// gate and up with SwiGLU, down's gradient with SwiGLU's: within our product, and as an op behind
/// it.
void add_quantized_swiglu(const std::string& recipe, std::int64_t block) {
  const std::int64_t one = block == 0 ? 0 : 1;
  const auto forward = [=](Operands& operands) {
    const Size& size = operands.size;
    QuantizedGemm args;
    args.c_MN = operands.typed({size.rows(), size.ffn});
    args.a = quantized(operands, {size.rows(), one}, {size.hidden, block});
    args.b = quantized(operands, gate_and_up(size, block), {size.hidden, block});
    args.precise_sums = block != 0;
    args.epilogue = GemmEpilogue::kSwiglu;
    args.saved = operands.typed({size.rows(), 2 * size.ffn});
    return args;
  };
  const auto gradient = [=](Operands& operands) {
    const Size& size = operands.size;
    QuantizedGemm args;
    args.c_MN = operands.typed({size.rows(), 2 * size.ffn});
    args.a = quantized(operands, {size.rows(), one}, {size.hidden, block});
    args.b = quantized(operands, {size.ffn, block}, {size.hidden, block});
    args.epilogue = GemmEpilogue::kSwigluBackward;
    args.operand = operands.typed({size.rows(), 2 * size.ffn});
    args.saved = operands.typed({size.rows(), size.ffn});
    return args;
  };
  add_quantized_op(recipe + "_swiglu", forward);
  add_quantized_op(recipe + "_swiglu_gradient", gradient);
  const auto unfused = [&](const std::string& name, const auto& args_of) {
    add_op("gemm_fp8_" + recipe + name, {DType::kBF16}, [=](Operands& operands) {
      return [args = args_of(operands)](Context& context) {
        gemm_quantized_internal::gemm_unfused(context, args);
      };
    });
  };
  unfused("_swiglu_unfused", forward);
  unfused("_swiglu_gradient_unfused", gradient);
}

/// up's products of whole tensors by each kernel that serves them, as `add_kernel` has bf16's: gate
/// and up as one tensor, since those of several parts are ours alone.
void add_quantized_kernel(const std::string& kernel, const GemmQuantizedGpuKernels* table) {
  if (table == nullptr) return;
  const auto forward = [](Operands& operands) {
    const Size& size = operands.size;
    QuantizedGemm args;
    args.c_MN = operands.typed({size.rows(), 2 * size.ffn});
    args.a = quantized(operands, {size.rows(), 0}, {size.hidden, 0});
    args.b = quantized(operands, {2 * size.ffn, 0}, {size.hidden, 0});
    args.precise_sums = false;
    return args;
  };
  const auto weight = [](Operands& operands) {
    const Size& size = operands.size;
    QuantizedGemm args;
    args.c_MN = operands.f32({2 * size.ffn, size.hidden});
    args.a = quantized(operands, {2 * size.ffn, 0}, {size.rows(), 0});
    args.b = quantized(operands, {size.hidden, 0}, {size.rows(), 0});
    args.accumulate = Accumulate::kYes;
    return args;
  };
  add_quantized_op("by_" + kernel + "_forward", forward, table);
  add_quantized_op("by_" + kernel + "_weight", weight, table);
}

}  // namespace

void add_products() {
  add_linear("qkv", false, [](const Size& size) { return std::pair(size.hidden, size.qkv()); });
  add_linear("out", false, [](const Size& size) { return std::pair(size.hidden, size.hidden); });
  add_linear("up", false, [](const Size& size) { return std::pair(size.hidden, 2 * size.ffn); });
  add_linear("down", false, [](const Size& size) { return std::pair(size.ffn, size.hidden); });
  add_linear("head", true, [](const Size& size) { return std::pair(size.hidden, size.vocab); });
  add_linear("expert", false,
             [](const Size& size) { return std::pair(size.hidden, size.ffn / 4); });
  for (const std::int64_t experts : {8, 64}) add_experts(experts);
  add_fused();
  for (const auto& [recipe, block] :
       {std::pair<const char*, std::int64_t>{"block", 128}, {"tensor", 0}}) {
    if (!gemm_quantized_serves(bench_device(), block)) continue;
    add_quantized(recipe, block);
    add_quantized_swiglu(recipe, block);
  }
  if (bench_device().kind != DeviceKind::kCuda) return;
  const GpuKernels& kernels = gpu_kernels();
  add_kernel("own", kernels.gemm);
  add_kernel("hopper", kernels.gemm_sm90);
  add_kernel("cublaslt", kernels.gemm_cublaslt);
  for (const std::int64_t experts : {8, 32}) {
    add_expert_kernel("own", experts, *kernels.grouped_gemm);
    if (kernels.grouped_gemm_sm90 != nullptr)
      add_expert_kernel("hopper", experts, kernels.grouped_gemm_sm90->kernels);
  }
  if (!grouped_gemm_quantized_serves(bench_device())) return;
  for (const std::int64_t experts : {8, 32}) add_quantized_experts(experts);
  add_quantized_kernel("own", kernels.gemm_fp8_sm90);
  if (gemm_gpu_library_version() != 0) add_quantized_kernel("cublaslt", kernels.gemm_fp8_cublaslt);
}

}  // namespace trireme::bench
