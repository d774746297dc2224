#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/cpu_tables.h"
#include "kernels/quantize/quantize_table.h"

namespace trireme {

/// Heads as in tensor/heads_view.h; strides in elements.
struct RopeForwardArgs {
  Exec exec;
  void* out;
  const void* in;
  std::int64_t out_stride, in_stride;
  const std::int32_t* positions;
  const float* cos_sin;
  const void* weight;  ///< null: no norm, and rstd is not written
  float* rstd;
  std::int64_t tokens, heads, head_dim, rotated;
  double eps;
  float weight_offset;
  DType dtype;         ///< of out and weight
  DType in_dtype;      ///< f32 sums, which are rounded first, or dtype
  std::int32_t* amax;  ///< of out; may be null
};

struct RopeBackwardArgs {
  Exec exec;
  void* din;
  const void *dout, *in;
  std::int64_t din_stride, dout_stride, in_stride;
  const std::int32_t* positions;
  const float* cos_sin;
  const void* weight;  ///< null: no norm, and in, rstd, dweight are not read
  const float* rstd;
  float* dweight;
  float* partial_sums;  ///< backward_scratch_floats
  std::int64_t tokens, heads, head_dim, rotated;
  float weight_offset;
  DType dtype;       ///< of din, in and weight
  DType dout_dtype;  ///< f32 sums, which are rounded first, or dtype
  std::int32_t* amax;
  int multiprocessors;  ///< of a GPU
};

/// The columns of both: three parts.
struct RopeCodesArgs {
  QuantizeBothArgs codes;
  const void* dout;
  std::int64_t columns;  ///< of a row of dout
  const std::int32_t* positions;
  const float *q_cos_sin, *k_cos_sin;
  std::int64_t k_begin, v_begin;  ///< columns
  std::int64_t head_dim, rotated;
  DType dout_dtype;
};

struct RopeKernels {
  void (*forward)(const RopeForwardArgs&);
  void (*backward)(const RopeBackwardArgs&);
  std::int64_t (*backward_scratch_floats)(const RopeBackwardArgs&);
  void (*backward_codes)(const RopeCodesArgs&);
};
TRIREME_CPU_TABLES(RopeKernels, rope_cpu);
namespace cuda {
extern const RopeKernels rope_cuda;
}

}  // namespace trireme
