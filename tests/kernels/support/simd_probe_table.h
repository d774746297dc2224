#pragma once
// The functions of kernels/common/simd.h as tests can call them: over arrays, for each instruction
// set.

#include <cstdint>

#include "base/dtype.h"
#include "kernels/common/cpu_tables.h"

namespace trireme {

struct SimdProbe {
  void (*exp)(float* y, const float* x, std::int64_t count);
  void (*exp2)(float* y, const float* x, std::int64_t count);
  void (*log)(float* y, const float* x, std::int64_t count);
  void (*sigmoid)(float* y, const float* x, std::int64_t count);
  void (*widen)(float* y, const BFloat16* x, std::int64_t count);
  void (*narrow)(BFloat16* y, const float* x, std::int64_t count);
  float (*sum)(const float* x, std::int64_t count);      ///< at most one vector
  float (*maximum)(const float* x, std::int64_t count);  ///< of whole vectors
  int width;
  bool flushes;  ///< narrow() makes 0 of subnormal numbers
};
TRIREME_CPU_TABLES(SimdProbe, simd_probe);

}  // namespace trireme
