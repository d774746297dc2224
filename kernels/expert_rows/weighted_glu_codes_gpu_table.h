#pragma once

#include "kernels/expert_rows/expert_rows_table.h"
#include "kernels/quantize/quantize_table.h"

namespace trireme {

/// Rows of bf16 by slot; ffn is a multiple of 8.
struct WeightedGluForwardCodesArgs {
  Exec exec;
  RowCodes h;
  WeightedGluRows rows;
};

struct WeightedGluBackwardCodesArgs {
  Exec exec;
  RowCodes dgate_up;  ///< gate's columns in its first half, up's in the other
  /// Codes and scales across of dgate_up and of h.
  struct Across {
    std::uint8_t* codes;
    float* scales;
  } dgate_up_across, h_across;
  float* dweights;
  const void* dh;
  WeightedGluRows rows;
  const std::int32_t* begins;
  std::int64_t segments;
  DType format;  ///< of dgate_up
};

struct WeightedGluCodesGpuKernels {
  void (*forward)(const WeightedGluForwardCodesArgs&);
  void (*backward)(const WeightedGluBackwardCodesArgs&);
};
namespace cuda {
extern const WeightedGluCodesGpuKernels weighted_glu_codes_cuda;
}

}  // namespace trireme
