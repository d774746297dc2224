#pragma once
// What the files of grouped_gemm_quantized share.

#include "kernels/grouped_gemm/grouped_gemm_quantized.h"

namespace trireme::grouped_gemm_internal {

// Of operands that were checked, with rows, columns and K.
void multiply_on_cpu(Context& context, const QuantizedGroupedGemm& args);
void weights_on_cpu(Context& context, const QuantizedGroupedGemmWeights& args);
void multiply_on_gpu(Context& context, const QuantizedGroupedGemm& args);
void weights_on_gpu(Context& context, const QuantizedGroupedGemmWeights& args);

}  // namespace trireme::grouped_gemm_internal
