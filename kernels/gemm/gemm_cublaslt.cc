// Products of f32 and bf16 by cuBLASLt.
//
// It ends a product with a bias and nothing else. Its GELU and its gradient take sums not rounded
// to bf16, and it adds a residual before rounding: neither gives the bits of the unfused sequence
// (kernels/README.md, "Numbers"). It serves what follows by the unfused sequence, where that is
// measured to be faster than our own kernels with an epilogue.
#include "kernels/gemm/gemm_cublaslt.h"

#include "kernels/gemm/gemm_gpu_table.h"

namespace trireme::cuda {
namespace {

cublaslt::Product product_of(const GemmGpuArgs& args) {
  return {.m = args.m,
          .n = args.n,
          .k = args.k,
          .transpose_a = args.transpose_a,
          .transpose_b = args.transpose_b,
          .accumulate = args.accumulate,
          .a = args.a,
          .b = args.b,
          .c = args.c,
          .bias = args.bias,
          .type_a = args.type,
          .type_b = args.type,
          .type_c = args.c_type};
}

bool serves(const GemmGpuArgs& args) {
  if (args.epilogue != GemmEpilogue::kNone) return false;
  // It wants the bias in c's type.
  if (args.bias != nullptr && args.c_type != args.type) return false;
  return cublaslt::serves(product_of(args));
}

void multiply(const GemmGpuArgs& args) {
  cublaslt::multiply(args.exec, product_of(args), args.workspace);
}

}  // namespace

const GemmGpuKernels gemm_cublaslt = {serves, multiply, cublaslt::kWorkspaceBytes,
                                      cublaslt::missing, cublaslt::version};

}  // namespace trireme::cuda
