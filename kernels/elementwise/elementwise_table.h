#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/cpu_tables.h"

namespace trireme {

struct CastArgs {
  Exec exec;
  void* destination;
  const void* source;
  std::int64_t count;
  DType destination_type, source_type;
};

/// Rows of row_bytes, each `stride` bytes after the one before.
struct CopyRowsArgs {
  Exec exec;
  void* destination;
  const void* source;
  std::size_t rows, row_bytes, destination_stride, source_stride;
  const std::int32_t* to = nullptr;  ///< put_rows: which row of the destination each is
};

struct ClearArgs {
  Exec exec;
  void* destination;
  std::size_t bytes;
};

struct AccumulateArgs {
  Exec exec;
  void* destination;
  const void* source;
  std::int64_t count;
  DType destination_type, source_type;
};

struct ScaleArgs {
  Exec exec;
  void* x;
  std::int64_t count;
  float factor;
  DType type;
};

struct SumRanksArgs {
  Exec exec;
  void* own;
  const void* others;
  std::int64_t count, others_count, rank;
  DType type;
};

struct ColumnSumArgs {
  Exec exec;
  float* sum;
  const void* x;
  float* partial_sums;  ///< column_sum_scratch_floats
  std::int64_t tokens, columns;
  DType x_type;
};

/// What is added side by side: x[i] goes to chain i % kSumChains.
inline constexpr int kSumChains = 32;

struct SumInOrderArgs {
  Exec exec;
  double* sum;
  const float* x;
  std::int64_t count;
};

struct ElementwiseKernels {
  void (*cast)(const CastArgs&);
  void (*copy_rows)(const CopyRowsArgs&);
  void (*put_rows)(const CopyRowsArgs&);
  void (*clear)(const ClearArgs&);
  void (*accumulate)(const AccumulateArgs&);
  void (*scale)(const ScaleArgs&);
  void (*sum_ranks)(const SumRanksArgs&);
  void (*column_sum)(const ColumnSumArgs&);
  std::int64_t (*column_sum_scratch_floats)(const ColumnSumArgs&);
  void (*sum_in_order)(const SumInOrderArgs&);
};
TRIREME_CPU_TABLES(ElementwiseKernels, elementwise_cpu);
namespace cuda {
extern const ElementwiseKernels elementwise_cuda;
}

}  // namespace trireme
