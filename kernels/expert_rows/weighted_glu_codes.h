#pragma once
// Weighted units (expert_rows.h) in front of products in fp8: what is left of bf16 values are the
// codes that these read, in blocks.

#include "kernels/expert_rows/expert_rows.h"
#include "tensor/quantized_segments.h"

namespace trireme {

/// h, e4m3, along: the bits of quantize_segments of what weighted_glu_forward would store. `args`:
/// of bf16 rows with row_slot and begins, without biases; F is a multiple of 8.
void weighted_glu_forward_codes(Context& context, const QuantizedSegments& h,
                                const WeightedGlu& args);

/// dgate_up along and across, in one format, and h, e4m3, across: likewise of what
/// weighted_glu_backward would store. dweights has that op's bits, on a GPU of rows that begin at
/// multiples of 16 bytes.
///   dgate_up, dgate_up_across  columns in two parts, each from the beginning of a block
///   dh [most, F], dweights as above;  args as above
struct WeightedGluGradientCodes {
  QuantizedSegments dgate_up, dgate_up_across, h_across;
};
void weighted_glu_backward_codes(Context& context, const WeightedGluGradientCodes& out,
                                 TensorView dweights_R, ConstTensorView dh_RF,
                                 const WeightedGlu& args);

}  // namespace trireme
