#pragma once
// What the files of grouped_gemm share.

#include "kernels/grouped_gemm/grouped_gemm.h"

namespace trireme::grouped_gemm_internal {

// Of operands that were checked, with rows, columns and K.
void multiply_on_cpu(Context& context, const GroupedGemm& args);
void weights_on_cpu(Context& context, const GroupedGemmWeights& args);
void multiply_on_gpu(Context& context, const GroupedGemm& args);
void weights_on_gpu(Context& context, const GroupedGemmWeights& args);

}  // namespace trireme::grouped_gemm_internal
