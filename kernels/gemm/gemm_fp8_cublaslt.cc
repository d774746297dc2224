// Products of fp8 operands by cuBLASLt, where all of an operand's part has one scale: the recipe
// `tensor`.
//
// A product with scales for parts of a's rows or b's is one call for each pair of them, which
// writes its rows and columns of c. Parts along K would have to be added to a bf16 c, rounded each
// time: they are left to our own kernel. So is what cuBLASLt ends with an epilogue
// (gemm_cublaslt.cc).
//
// Blocks of 128 are no candidate: it reads their scales with those of neighbouring rows side by
// side (CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F), where ours have those of a row's neighbouring
// blocks so, as they are made and travel.
#include "kernels/gemm/gemm_cublaslt.h"
#include "kernels/gemm/gemm_quantized_gpu_table.h"

namespace trireme::cuda {
namespace {

constexpr std::int64_t kAlignment = 16;  ///< of fp8 operands and results, in bytes, and of n

bool aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0;
}

template <class Byte>
Byte* element(Byte* data, std::int64_t index, std::int64_t bytes) {
  return data == nullptr ? nullptr : data + index * bytes;
}

/// Calls `f` with the product of each part of a's rows and each of b's, until it says false.
template <class F>
bool each_product(const GemmQuantizedGpuArgs& args, const F& f) {
  const GemmGpuArgs& all = args.product;
  const std::int64_t c_bytes = all.c_type == DType::kBF16 ? 2 : 4;
  std::int64_t row = 0;
  for (int i = 0; i < args.a.parts; row += args.a.sizes[i++]) {
    std::int64_t column = 0;
    for (int j = 0; j < args.b.parts; column += args.b.sizes[j++]) {
      const cublaslt::Product part = {
          .m = args.a.sizes[i],
          .n = args.b.sizes[j],
          .k = all.k,
          .transpose_a = false,
          .transpose_b = true,
          .accumulate = all.accumulate,
          .a = element(static_cast<const std::byte*>(all.a), row * all.k, 1),
          .b = element(static_cast<const std::byte*>(all.b), column * all.k, 1),
          .c = element(static_cast<std::byte*>(all.c), row * all.n + column, c_bytes),
          .c_stride = all.n,
          .bias = element(static_cast<const std::byte*>(all.bias), column, 2),
          .type_a = args.format_a,
          .type_b = args.format_b,
          .type_c = all.c_type,
          .scale_a = args.a.scales + i,
          .scale_b = args.b.scales + j,
          .fast_sums = !args.precise_sums};
      if (!f(part)) return false;
    }
  }
  return true;
}

bool has_one_scale(const ScalesGpu& scales) {
  return scales.row_block == 0 && scales.column_block == 0;
}

bool serves(const GemmQuantizedGpuArgs& args) {
  const GemmGpuArgs& all = args.product;
  if (all.epilogue != GemmEpilogue::kNone || args.k_parts != 1) return false;
  if (!has_one_scale(args.a) || !has_one_scale(args.b)) return false;
  if (all.bias != nullptr && all.c_type != DType::kBF16) return false;
  return each_product(args, [](const cublaslt::Product& p) {
    const bool fits = aligned(p.a) && aligned(p.b) && aligned(p.c) && aligned(p.bias) &&
                      p.n % kAlignment == 0 && p.c_stride % kAlignment == 0;
    return fits && cublaslt::serves(p);
  });
}

void multiply(const GemmQuantizedGpuArgs& args) {
  each_product(args, [&](const cublaslt::Product& p) {
    cublaslt::multiply(args.product.exec, p, args.product.workspace);
    return true;
  });
}

}  // namespace

const GemmQuantizedGpuKernels gemm_fp8_cublaslt = {serves, multiply, cublaslt::kWorkspaceBytes};

}  // namespace trireme::cuda
