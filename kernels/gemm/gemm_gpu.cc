// The product on a GPU: which of the tables that this program has serves it.

#include "device/gpu.h"
#include "kernels/common/dispatch.h"
#include "kernels/gemm/gemm_gpu_table.h"
#include "kernels/gemm/gemm_internal.h"

namespace trireme::gemm_internal {
namespace {

/// A memo: asking a driver for a GPU's properties takes longer than a product.
const gpu::Info& info_of(int device) {
  thread_local int known = -1;
  thread_local gpu::Info info;
  if (known != device) {
    info = gpu::info(device);
    known = device;
  }
  return info;
}

GemmGpuArgs gpu_args(const Context& context, const Gemm& args, Sizes s) {
  return {.exec = context.exec(),
          .c = args.c_MN.data,
          .a = args.a.data,
          .b = args.b.data,
          .bias = args.bias_N.data,
          .operand = nullptr,
          .saved = nullptr,
          .m = s.m,
          .n = s.n,
          .k = s.k,
          .transpose_a = args.transpose_a == Transpose::kYes,
          .transpose_b = args.transpose_b == Transpose::kYes,
          .accumulate = args.accumulate == Accumulate::kYes,
          .type = args.a.dtype,
          .c_type = args.c_MN.dtype,
          .epilogue = GemmEpilogue::kNone,
          .multiprocessors = info_of(context.device().index).multiprocessors,
          .workspace = nullptr};
}

}  // namespace

void gemm_on_gpu(Context& context, const Gemm& args, Sizes sizes) {
  gpu_table("gemm", &GpuKernels::gemm).multiply(gpu_args(context, args, sizes));
}

}  // namespace trireme::gemm_internal
