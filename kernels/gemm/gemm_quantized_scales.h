#pragma once
// Scales as a GPU's kernels take them: for gemm_quantized, and for the products of many matrices
// that are built on it (kernels/grouped_gemm).

#include "kernels/gemm/gemm_quantized_gpu_table.h"
#include "tensor/quantized_view.h"

namespace trireme::gemm_quantized_internal {

/// Parts without rows are left out.
ScalesGpu scales_of(const ConstTensorView& scales, const ScaleDim& rows, const ScaleDim& columns);
/// Where the parts of K end in the padded order, in blocks of 128; gives how many have indices.
int ends_of_parts(const ScaleDim& k, std::int64_t (&ends)[ScalesGpu::kPartsMax]);

}  // namespace trireme::gemm_quantized_internal
