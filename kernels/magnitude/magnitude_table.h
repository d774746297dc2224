#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/cpu_tables.h"

namespace trireme {

struct MagnitudeGainsArgs {
  Exec exec;
  float *gain, *inverse;
  const void* magnitude;  ///< may be null
  const float* squares;
  std::int64_t count;
  DType dtype;  ///< of the magnitudes
};

struct MagnitudeGradientArgs {
  Exec exec;
  float* dmagnitude;
  const float *dgain, *inverse;
  std::int64_t count;
};

struct MagnitudeForwardArgs {
  Exec exec;
  void* y;
  const void* v;
  const float* gain;
  const void* bias;  ///< may be null
  std::int64_t tokens, columns;
  DType dtype;
};

struct MagnitudeBackwardArgs {
  Exec exec;
  void* dv;  ///< may be null
  float* dgain;
  const void *dy, *v;
  const float* gain;    ///< null where dv is
  float* partial_sums;  ///< backward_scratch_floats
  std::int64_t tokens, columns;
  DType dtype;
};

struct MagnitudeKernels {
  void (*gains)(const MagnitudeGainsArgs&);
  void (*gradient)(const MagnitudeGradientArgs&);
  void (*forward)(const MagnitudeForwardArgs&);
  void (*backward)(const MagnitudeBackwardArgs&);
  std::int64_t (*backward_scratch_floats)(const MagnitudeBackwardArgs&);
};
TRIREME_CPU_TABLES(MagnitudeKernels, magnitude_cpu);
namespace cuda {
extern const MagnitudeKernels magnitude_cuda;
}

}  // namespace trireme
