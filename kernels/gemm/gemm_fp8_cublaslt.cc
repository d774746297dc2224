// Products of fp8 operands by cuBLASLt, where all of an operand's part has one scale: the recipe
// `tensor`.
//
// Operands of several parts are left to our own kernel. Those of K would have to be added to a bf16
// c, rounded each time. Those of rows would be a call each, but a scale must stand at a multiple of
// 16 bytes (an H200 refuses others, as what is not supported, when a product is asked for), and
// theirs stand side by side. So is what cuBLASLt ends with an epilogue (gemm_cublaslt.cc).
//
// Blocks of 128 are no candidate: it reads their scales with those of neighbouring rows side by
// side (CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F), where ours have those of a row's neighbouring
// blocks so, as they are made and travel.
#include "kernels/gemm/gemm_cublaslt.h"
#include "kernels/gemm/gemm_quantized_gpu_table.h"

namespace trireme::cuda {
namespace {

constexpr std::int64_t kAlignment = 16;  ///< of operands, scales and results, in bytes; of n

bool aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0;
}

bool has_one_scale(const ScalesGpu& of) {
  return of.parts == 1 && of.row_block == 0 && of.column_block == 0 && aligned(of.scales);
}

cublaslt::Product product_of(const GemmQuantizedGpuArgs& args) {
  const GemmGpuArgs& all = args.product;
  return {.m = all.m,
          .n = all.n,
          .k = all.k,
          .transpose_a = false,
          .transpose_b = true,
          .accumulate = all.accumulate,
          .a = all.a,
          .b = all.b,
          .c = all.c,
          .bias = all.bias,
          .type_a = args.format_a,
          .type_b = args.format_b,
          .type_c = all.c_type,
          .scale_a = args.a.scales,
          .scale_b = args.b.scales,
          .fast_sums = !args.precise_sums};
}

bool serves(const GemmQuantizedGpuArgs& args) {
  const GemmGpuArgs& all = args.product;
  if (all.epilogue != GemmEpilogue::kNone || args.k_parts != 1) return false;
  if (!has_one_scale(args.a) || !has_one_scale(args.b)) return false;
  if (all.bias != nullptr && all.c_type != DType::kBF16) return false;
  const bool fits = aligned(all.a) && aligned(all.b) && aligned(all.c) && aligned(all.bias) &&
                    all.n % kAlignment == 0;
  return fits && cublaslt::serves(product_of(args));
}

void multiply(const GemmQuantizedGpuArgs& args) {
  cublaslt::multiply(args.product.exec, product_of(args), args.product.workspace);
}

}  // namespace

const GemmQuantizedGpuKernels gemm_fp8_cublaslt = {serves, multiply, cublaslt::kWorkspaceBytes};

}  // namespace trireme::cuda
