#pragma once

#include <cstdint>

#include "device/exec.h"
#include "kernels/common/cpu_tables.h"

namespace trireme {

struct GradNormKernels {
  /// squares[r] = the sum of the squares of row r, by one thread.
  void (*row_squares)(double* squares, const float* gradient, std::int64_t rows,
                      std::int64_t columns);
};
TRIREME_CPU_TABLES(GradNormKernels, grad_norm_cpu);

/// A GPU's blocks take so many rows each.
inline constexpr std::int64_t kGradNormRowsPerBlock = 64;

/// One tensor (no padding: a GPU finds the table again by its bytes); blocks of
/// kGradNormRowsPerBlock before it, none shared.
struct GradNormTensorArgs {
  const float* gradient;
  std::int64_t rows, columns, first_block;
};

struct ManySquaresArgs {
  Exec exec;
  std::uint64_t* words;  ///< of an ExactSum: base/exact_sum.h
  const GradNormTensorArgs* tensors;
  std::int64_t tensor_count, block_count;
};

/// On a GPU one launch takes all tensors; the exact sum alone comes back, rows added as integers.
struct GradNormGpuKernels {
  /// words += the squares of all rows.
  void (*squares)(const ManySquaresArgs&);
};
namespace cuda {
extern const GradNormGpuKernels grad_norm_cuda;
}

}  // namespace trireme
