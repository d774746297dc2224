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
  DType x_type, format;
};

struct QuantizeSegmentsGpuKernels {
  void (*quantize)(const QuantizeSegmentsGpuArgs&);
};
namespace cuda {
extern const QuantizeSegmentsGpuKernels quantize_segments_cuda;
}

}  // namespace trireme
