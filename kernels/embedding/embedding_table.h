#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"

namespace trireme {

/// positions and position_table are null where positions enter elsewhere.
struct EmbeddingForwardArgs {
  Exec exec;
  void* out;
  const std::int32_t* ids;
  const void* table;
  const std::int32_t* positions;
  const void* position_table;
  std::int64_t tokens, channels;
  DType dtype;
};

struct EmbeddingBackwardArgs {
  Exec exec;
  float* dtable;
  const std::int32_t* ids;
  const void* dout;
  std::int64_t tokens, channels;
  DType dout_type;
};

struct EmbeddingKernels {
  void (*forward)(const EmbeddingForwardArgs&);
  void (*backward)(const EmbeddingBackwardArgs&);
};
namespace avx2 {
extern const EmbeddingKernels embedding_cpu;
}
namespace avx512 {
extern const EmbeddingKernels embedding_cpu;
}
namespace cuda {
extern const EmbeddingKernels embedding_cuda;
}

}  // namespace trireme
