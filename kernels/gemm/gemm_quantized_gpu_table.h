#pragma once
// The product of quantised operands on a GPU: its tables' arguments.

#include "kernels/gemm/gemm_gpu_table.h"

namespace trireme {

/// An operand's scales, as ScaleDim and BasicQuantizedView (tensor/quantized_view.h) say; parts
/// without rows left out.
struct ScalesGpu {
  static constexpr int kPartsMax = 4;
  const float* scales;
  std::int64_t columns;  ///< of scales
  std::int64_t row_block, column_block;
  int parts;
  std::int64_t sizes[kPartsMax], offsets[kPartsMax];
};

/// c = epilogue(a b^T).
///   product  a [m, k], b [n, k]: codes, k padded; `type` is that of the epilogue's operands
struct GemmQuantizedGpuArgs {
  GemmGpuArgs product;
  DType format_a, format_b;
  ScalesGpu a, b;
  int k_parts;
  std::int64_t k_ends[ScalesGpu::kPartsMax];  ///< of the parts along k, in blocks of 128
  bool precise_sums;
  std::int32_t* amax;  ///< QuantizedGemm's, where the table leaves it; may be null
};

/// There may be four: our own, which serves all that training asks for without an epilogue, its
/// rival by three warpgroups, which gives the same bits, the one whose blocks share sums, and the
/// library's.
struct GemmQuantizedGpuKernels {
  /// Whether this table has a kernel for such a product: scales, formats, shape, alignment.
  bool (*serves)(const GemmQuantizedGpuArgs&);
  void (*multiply)(const GemmQuantizedGpuArgs&);
  std::size_t workspace_bytes = 0;  ///< GemmGpuArgs::workspace
  /// Whether its kernel for such a product leaves c's largest magnitudes; null: none does.
  bool (*leaves_maxima)(const GemmQuantizedGpuArgs&) = nullptr;
};
namespace cuda {
extern const GemmQuantizedGpuKernels gemm_fp8_cublaslt;
extern const GemmQuantizedGpuKernels gemm_fp8_sm90;         ///< where code for sm_90a is compiled
extern const GemmQuantizedGpuKernels gemm_fp8_triple_sm90;  ///< likewise
extern const GemmQuantizedGpuKernels gemm_fp8_split_sm90;   ///< likewise
}  // namespace cuda

}  // namespace trireme
