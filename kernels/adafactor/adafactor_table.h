#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/cpu_tables.h"

namespace trireme {

/// torch's eps1: that of fp32.
inline constexpr float kAdafactorEps = 0x1p-23F;

/// A GPU's blocks take tiles of so many rows and columns.
inline constexpr std::int64_t kAdafactorTileRows = 64, kAdafactorTileColumns = 256;

struct AdafactorLinesArgs {
  float* variance;
  std::int32_t* largest;
  double* sums;
  std::int64_t terms;
};

/// One tensor; a vector is one row, with a variance and no lines. A GPU keeps the table, found by
/// its bytes.
struct AdafactorTensorArgs {
  float *parameter, *variance;
  const float* gradient;
  BFloat16* copy;             ///< or null
  const std::int32_t* slots;  ///< or null: row r's gradient is row slots[r]; on a CPU only
  AdafactorLinesArgs row, column;
  std::uint64_t* words;
  const float* scalars;  ///< mean, keep, step
  std::int64_t rows, columns;
  std::int64_t first_block;  ///< tiles before it, none shared
};

struct AdafactorArgs {
  Exec exec;
  const AdafactorTensorArgs* tensors;  ///< in the device's memory
  std::int64_t tensor_count, block_count;
  float gradient_scale;
  double square_scale;  ///< gradient_scale^2
  float share;
};

struct AdafactorKernels {
  void (*largest)(const AdafactorArgs&);
  void (*sums)(const AdafactorArgs&);
  void (*lines)(const AdafactorArgs&);
  void (*variances)(const AdafactorArgs&);
  void (*update)(const AdafactorArgs&);
  /// Of elements [begin, end): rounded squares of parameters, of u; exact below 2^13, 2^29.
  double (*weight_squares)(const AdafactorTensorArgs&, std::int64_t begin, std::int64_t end);
  double (*step_squares)(const AdafactorTensorArgs&, float gradient_scale, std::int64_t begin,
                         std::int64_t end);
};
TRIREME_CPU_TABLES(AdafactorKernels, adafactor_cpu);

struct AdafactorGpuKernels {
  void (*largest)(const AdafactorArgs&);
  void (*sums)(const AdafactorArgs&);  ///< words too
  void (*lines)(const AdafactorArgs&);
  void (*squares)(const AdafactorArgs&);  ///< variances, then words
  void (*update)(const AdafactorArgs&);
};
namespace cuda {
extern const AdafactorGpuKernels adafactor_cuda;
}

}  // namespace trireme
