#pragma once
// What the files of gemm share; nobody else includes it.

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_table.h"

namespace trireme::gemm_internal {

struct Sizes {
  std::int64_t m, n, k;
};

/// c = op(a) op(b) + beta c in f32; strides are those of the stored matrices, in elements.
struct Sgemm {
  Sizes sizes;
  const float* a;
  const float* b;
  float* c;
  std::int64_t a_stride, b_stride, c_stride;
  Transpose transpose_a, transpose_b;
  float beta;
};
void sgemm(int threads, const Sgemm& args);

/// By a kernel of the context's GPU.
void gemm_on_gpu(Context& context, const Gemm& args, Sizes sizes);

/// Whether oneDNN multiplies bf16 with the CPU's own instructions.
bool has_native_bf16(const Context& context);
/// By a oneDNN primitive of the operands' type, f32 or bf16 (f32 stands here for tests: it runs on
/// any CPU).
void gemm_by_primitive(Context& context, const Gemm& args, Sizes sizes);
/// bf16 operands widened block by block, then sgemm: right on any CPU, and slower.
void gemm_by_panels(Context& context, const Gemm& args, Sizes sizes);

/// c[r, :] = bias for each row.
void fill_with_bias(Context& context, TensorView c_MN, ConstTensorView bias_N);
const GemmKernels& kernels(const Context& context);

}  // namespace trireme::gemm_internal
