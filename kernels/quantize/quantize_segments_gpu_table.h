#pragma once

#include "kernels/quantize/quantize_table.h"

namespace trireme {

/// Codes of the rows of segments; begins in the GPU's memory.
struct QuantizeSegmentsGpuArgs {
  Exec exec;
  void* codes;
  float* scales;
  const void* x;
  const std::int32_t* begins;
  std::int64_t segments, rows;  ///< rows: that there may be
  QuantizedDim columns;         ///< of x; whole: a scale for each segment and part
  std::int32_t* amax;           ///< [segments, columns.blocks], where whole
  bool across;
  const std::int32_t* row_slot;  ///< rows of x, in blocks of bf16: x[row_slot[r] / slots]; or null
  std::int64_t slots;
  DType x_type, format;
};

struct QuantizeSegmentsGpuKernels {
  void (*quantize)(const QuantizeSegmentsGpuArgs&);
};
namespace cuda {
extern const QuantizeSegmentsGpuKernels quantize_segments_cuda;
}

}  // namespace trireme
