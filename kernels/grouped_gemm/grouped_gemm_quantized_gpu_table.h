#pragma once
// The products of quantised rows and weights of experts on a GPU: its table's arguments.

#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/gemm/gemm_quantized_gpu_table.h"

namespace trireme {

/// c[r] = a[r] b_g^T. Scales of a: a row's own, or its segment's (`a.row_block` 1 or 0); of b one
/// matrix's, [experts] of which lie behind each other.
struct GroupedGemmQuantizedGpuArgs {
  Exec exec;
  void* c;
  const void *a, *b;  ///< codes
  const std::int32_t* begins;
  std::int64_t experts, sources, rows, n, k;  ///< k padded; rows: that there may be
  ScalesGpu a_scales, b_scales;
  int k_parts;
  std::int64_t k_ends[ScalesGpu::kPartsMax];  ///< of the parts along k, in blocks of 128
  bool precise_sums;
  DType format_a, format_b;
  int multiprocessors;
};
/// c_g (+)= the sum over segments of a b^T; codes as QuantizedSegments has them across.
struct GroupedGemmQuantizedWeightsGpuArgs {
  Exec exec;
  float* c;
  const void *a, *b;
  const std::int32_t* begins;
  std::int64_t experts, sources, blocks, m, n;  ///< blocks: that there may be
  ScalesGpu a_scales, b_scales;  ///< along m and n: a scale for each and block, or for a part
  bool accumulate;
  DType format_a, format_b;
  int multiprocessors;
  float* sums;  ///< gpu_scratch::grouped_weights_floats
};

struct GroupedGemmQuantizedGpuKernels {
  void (*multiply)(const GroupedGemmQuantizedGpuArgs&);
  void (*weights)(const GroupedGemmQuantizedWeightsGpuArgs&);
};
namespace cuda {
extern const GroupedGemmQuantizedGpuKernels grouped_gemm_fp8_sm90;  ///< where code for sm_90a is
}

}  // namespace trireme
