#include "kernels/gemm/gemm_quantized_internal.h"

namespace trireme::gemm_quantized_internal {

void gemm_on_gpu(Context& /*context*/, const QuantizedGemm& args) {
  const gemm_internal::Sizes s = sizes_of(args);
  throw InternalError("no kernel for an fp8 product of [{}, {}] and [{}, {}]", s.m, s.k, s.k, s.n);
}

}  // namespace trireme::gemm_quantized_internal
