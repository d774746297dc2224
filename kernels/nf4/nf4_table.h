#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/cpu_tables.h"

namespace trireme {

/// Levels in order of their codes, and the midpoints between neighbours, as f32 has them.
struct Nf4Levels {
  alignas(64) float level[16] = {-1.0F,
                                 -0.6961928009986877F,
                                 -0.5250730514526367F,
                                 -0.39491748809814453F,
                                 -0.28444138169288635F,
                                 -0.18477343022823334F,
                                 -0.09105003625154495F,
                                 0.0F,
                                 0.07958029955625534F,
                                 0.16093020141124725F,
                                 0.24611230194568634F,
                                 0.33791524171829224F,
                                 0.44070982933044434F,
                                 0.5626170039176941F,
                                 0.7229568362236023F,
                                 1.0F};
  float midpoint[15] = {};

  constexpr Nf4Levels() {
    for (int i = 0; i < 15; ++i) midpoint[i] = (level[i] + level[i + 1]) / 2;
  }
};
inline constexpr Nf4Levels kNf4Levels;
/// What a block's largest magnitude is taken for where it is less.
inline constexpr float kNf4Least = 1e-38F;
inline constexpr int kNf4ZeroCode = 7;

struct Nf4QuantizeArgs {
  Exec exec;
  std::uint8_t* codes;
  float* absmax;
  const float* x;
  std::int64_t count;
};

struct Nf4DequantizeArgs {
  Exec exec;
  void* x;
  const std::uint8_t* codes;
  const float* absmax;
  std::int64_t count;
  DType x_type;
};

struct Nf4Kernels {
  void (*quantize)(const Nf4QuantizeArgs&);
  void (*dequantize)(const Nf4DequantizeArgs&);
};
TRIREME_CPU_TABLES(Nf4Kernels, nf4_cpu);
namespace cuda {
extern const Nf4Kernels nf4_cuda;
}

}  // namespace trireme
