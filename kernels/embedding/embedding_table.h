#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/cpu_tables.h"

namespace trireme {

/// positions and position_table are null where positions enter elsewhere. Rows from first_row on.
struct EmbeddingForwardArgs {
  Exec exec;
  void* out;
  const std::int32_t* ids;
  const void* table;
  const std::int32_t* positions;
  const void* position_table;
  std::int64_t tokens, channels, rows, position_rows;  ///< rows of the tables
  std::int64_t first_row, vocabulary;
  DType dtype;
};

struct EmbeddingBackwardArgs {
  Exec exec;
  float* dtable;
  const std::int32_t* ids;
  const void* dout;
  std::int64_t tokens, channels, rows, first_row;
  DType dout_type;
  std::byte* scratch;
};

struct EmbeddingKernels {
  void (*forward)(const EmbeddingForwardArgs&);
  void (*backward)(const EmbeddingBackwardArgs&);
  std::size_t (*backward_scratch_bytes)(std::int64_t tokens, std::int64_t rows);
};
TRIREME_CPU_TABLES(EmbeddingKernels, embedding_cpu);
namespace cuda {
extern const EmbeddingKernels embedding_cuda;
}

}  // namespace trireme
