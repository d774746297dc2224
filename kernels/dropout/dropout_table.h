#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/cpu_tables.h"

namespace trireme {

inline constexpr int kDropoutGroup = 8;  ///< columns that one number of 128 bits serves

struct DropoutArgs {
  Exec exec;
  void* y;
  const void* x;
  const std::uint32_t* tokens;  ///< [rows, 2]: sample, position
  std::uint64_t key;
  std::int64_t rows, columns, first_column;
  std::uint32_t dropped;  ///< of 2^16
  float factor;           ///< of what is not
  DType dtype;

  /// Of the whole row's columns, those of a number that is needed here.
  [[nodiscard]] std::int64_t first_group() const { return first_column / kDropoutGroup; }
  [[nodiscard]] std::int64_t groups() const {
    return (first_column + columns - 1) / kDropoutGroup + 1 - first_group();
  }
};

struct DropoutKernels {
  void (*dropout)(const DropoutArgs&);
};
TRIREME_CPU_TABLES(DropoutKernels, dropout_cpu);
namespace cuda {
extern const DropoutKernels dropout_cuda;
}

}  // namespace trireme
