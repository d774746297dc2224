#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"

namespace trireme {

/// destination[r, c] = source[r, c], converted; a source stride of 0 repeats one row.
struct PanelArgs {
  Exec exec;
  void* destination;
  const void* source;
  std::int64_t rows, columns;
  std::int64_t destination_stride, source_stride;  ///< in elements
  DType destination_type, source_type;
};

/// destination += source, in f32, rounded once.
struct AddArgs {
  Exec exec;
  void* destination;
  const void* source;
  std::int64_t count;
  DType type;
};

struct GemmKernels {
  void (*copy_panel)(const PanelArgs&);
  void (*add)(const AddArgs&);
};
namespace avx2 {
extern const GemmKernels gemm_cpu;
}
namespace avx512 {
extern const GemmKernels gemm_cpu;
}

}  // namespace trireme
