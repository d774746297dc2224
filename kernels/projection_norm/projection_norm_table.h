#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/cpu_tables.h"

namespace trireme {

/// Rows of `width` columns, strides in elements.
struct HeadDotsArgs {
  Exec exec;
  float* dots;
  const void *a, *b;
  std::int64_t a_stride, b_stride;
  std::int64_t tokens, width;
  DType dtype;
};

struct ProjectionNormForwardArgs {
  Exec exec;
  void* out;
  const void* in;
  std::int64_t out_stride, in_stride;
  const float* squares;
  const void* weight;
  std::int64_t tokens, width;
  double columns, eps;
  DType dtype;
};

struct ProjectionNormBackwardArgs {
  Exec exec;
  void* din;
  const void *dout, *in;
  std::int64_t din_stride, dout_stride, in_stride;
  const float *squares, *dots;
  const void* weight;
  float* dweight;       ///< may be null
  float* partial_sums;  ///< backward_scratch_floats
  std::int64_t tokens, width;
  double columns, eps;
  DType dtype;
};

struct ProjectionNormKernels {
  void (*dots)(const HeadDotsArgs&);
  void (*forward)(const ProjectionNormForwardArgs&);
  void (*backward)(const ProjectionNormBackwardArgs&);
  std::int64_t (*backward_scratch_floats)(const ProjectionNormBackwardArgs&);
};
TRIREME_CPU_TABLES(ProjectionNormKernels, projection_norm_cpu);
namespace cuda {
extern const ProjectionNormKernels projection_norm_cuda;
}

}  // namespace trireme
