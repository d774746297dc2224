#pragma once
// Rows of experts to fp8, for the products of kernels/grouped_gemm: each segment by itself, by the
// formulas of kernels/quantize. How many rows a segment has, the table of expert_rows says, in the
// device's memory: no host waits for it.

#include "device/context.h"
#include "tensor/quantized_segments.h"

namespace trireme {

/// Codes and scales of the rows of x, along or across.
///   out     of x's columns; what is outside of segments may be written or not, but for the zeros
///           behind the rows of a segment across
///   x       [most, C] f32|bf16
///   begins  [S + 1] i32
///   row_slot, slots  as in kernels/expert_rows: where given, x is tokens [T, C], bf16, of which
///           gather_rows would make the rows first; in blocks alone
/// The bits are those of `quantize` for each segment alone: along, of its rows in blocks of one row
/// (or one block); across, of its transpose in blocks of one column (or one block).
struct QuantizeSegments {
  QuantizedSegments out;
  ConstTensorView x;
  ConstTensorView begins;
  ConstTensorView row_slot = {};
  std::int64_t slots = 1;
};
void quantize_segments(Context& context, const QuantizeSegments& args);

}  // namespace trireme
