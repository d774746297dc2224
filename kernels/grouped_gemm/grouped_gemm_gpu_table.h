#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"

namespace trireme {

/// c[r] = a[r] op(b_g); begins as in grouped_gemm.h, in the GPU's memory.
struct GroupedGemmGpuArgs {
  Exec exec;
  void* c;
  const void *a, *b;
  const std::int32_t* begins;
  std::int64_t experts, sources, rows, n, k;  ///< rows: that there may be
  bool transpose_b;
  DType type;
  int multiprocessors;
};
/// c_g (+)= the sum over segments of a^T b.
struct GroupedGemmWeightsGpuArgs {
  Exec exec;
  float* c;
  const void *a, *b;
  const std::int32_t* begins;
  std::int64_t experts, sources, rows, m, n;  ///< rows: that there may be
  bool accumulate;
  DType type;
  int multiprocessors;
  float* sums;  ///< gpu_scratch::grouped_weights_floats
};

struct GroupedGemmGpuKernels {
  void (*multiply)(const GroupedGemmGpuArgs&);
  void (*weights)(const GroupedGemmWeightsGpuArgs&);
};
/// What a table may leave to the one for any GPU: by sizes of experts, types and alignment, never
/// by how many rows there are.
struct GroupedGemmHopperKernels {
  GroupedGemmGpuKernels kernels;
  bool (*serves)(const GroupedGemmGpuArgs&);
  bool (*serves_weights)(const GroupedGemmWeightsGpuArgs&);
};
namespace cuda {
extern const GroupedGemmGpuKernels grouped_gemm_cuda;     ///< for any GPU
extern const GroupedGemmHopperKernels grouped_gemm_sm90;  ///< where code for sm_90a is compiled
}  // namespace cuda

}  // namespace trireme
