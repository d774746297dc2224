#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/cpu_tables.h"
#include "kernels/quantize/quantize_table.h"

namespace trireme {

/// Pointers of absent operands are null; `dtype` is that of y, x, residual, sum, weight and bias.
struct NormForwardArgs {
  Exec exec;
  void *y, *sum;
  float *mean, *rstd;
  const void *x, *residual, *weight, *bias;
  std::int64_t tokens, channels;
  double eps;
  float weight_offset;
  DType dtype;
  RowCodes quantized;  ///< y may be null where it has codes
};

struct NormBackwardArgs {
  Exec exec;
  void *dx, *y;
  float *dweight, *dbias;
  const void *dy, *dresidual, *s, *weight, *bias;
  const float *mean, *rstd;  ///< mean null for RMS
  float* partial_sums;       ///< norm_backward_scratch_floats
  std::int64_t tokens, channels;
  float weight_offset;
  DType dtype;
  int multiprocessors;  ///< of a GPU
  std::int32_t* amax;   ///< of dx; may be null
};

struct NormKernels {
  void (*rms_forward)(const NormForwardArgs&);
  void (*layer_forward)(const NormForwardArgs&);
  void (*none_forward)(const NormForwardArgs&);
  void (*rms_backward)(const NormBackwardArgs&);
  void (*layer_backward)(const NormBackwardArgs&);
  void (*none_backward)(const NormBackwardArgs&);
  /// How many floats of scratch a backward pass wants; dweight and dbias may be null.
  std::int64_t (*backward_scratch_floats)(const NormBackwardArgs&);
};
TRIREME_CPU_TABLES(NormKernels, norm_cpu);
namespace cuda {
extern const NormKernels norm_cuda;
}

}  // namespace trireme
