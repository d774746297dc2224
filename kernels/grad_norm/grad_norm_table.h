#pragma once

#include <cstdint>

#include "device/exec.h"

namespace trireme {

/// squares[r] = the sum of the squares of row r.
struct RowSquaresArgs {
  Exec exec;
  double* squares;
  const float* gradient;
  std::int64_t rows, columns;
};

struct GradNormKernels {
  void (*row_squares)(const RowSquaresArgs&);
};
namespace avx2 {
extern const GradNormKernels grad_norm_cpu;
}
namespace avx512 {
extern const GradNormKernels grad_norm_cpu;
}
namespace cuda {
extern const GradNormKernels grad_norm_cuda;
}

}  // namespace trireme
