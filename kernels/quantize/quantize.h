#pragma once
// To fp8 and back: the largest magnitude of each block, scales from it, codes (current scaling, as
// Transformer Engine's recipes of that name and DeepSeek-V3's blocks).
//
//   amax = max |x| over a block
//   s    = 1 where amax is 0 or not finite, else min(largest / amax, FLT_MAX)   in f32;
//          largest: 448 or 57,344
//   code = the value of the format nearest to x s, ties to even, at most `largest` in magnitude;
//          0x7f of a NaN
//   scale = 1 / s, by which a code is multiplied
//
// A block with a value that is not finite gets the scale NaN: whatever is computed with it shows
// that, as the bf16 product would. All bits are the same on a CPU and a GPU, for any number of
// threads, but for those of a NaN that dequantize stores.

#include "device/context.h"
#include "kernels/common/transpose.h"
#include "tensor/quantized_view.h"

namespace trireme {

/// amax[i, j] = max(amax[i, j], bits of max |x| over block (i, j)), as integers: their order is
/// that of magnitudes, NaN above all, so any order and grouping of maxima gives the same.
///   amax [rows.blocks(), columns.blocks()] i32, cleared by the caller;  x [R, C] f32|bf16
void absolute_max(Context& context, TensorView amax, ConstTensorView x, const ScaleDim& rows,
                  const ScaleDim& columns);

/// most[i] = the largest of most[i] and others[p, i], which are such maxima.  i32; N and P any
void join_maxima(Context& context, TensorView most_N, ConstTensorView others_PN);

/// Codes and scales of x, or of x^T with `transpose`; out.rows and out.columns are those of what is
/// written.
///   x     [R, C] f32|bf16
///   amax  as above, of x's own rows and columns; not given: found here
/// With amax and without out.scales the codes alone are written: of a tensor whose scales stand
/// elsewhere.
struct Quantize {
  QuantizedView out;
  ConstTensorView x;
  ConstTensorView amax = {};
  Transpose transpose = Transpose::kNo;
};
void quantize(Context& context, const Quantize& args);

/// Codes and scales of x and of x^T from one reading of it: the bits of two calls of quantize.
///   along   of x;  across: of x^T, in along's format. Their blocks may be others
///   x, amax as above; an amax of x's own rows and columns for each
struct QuantizeBoth {
  QuantizedView along, across;
  ConstTensorView x;
  ConstTensorView along_amax = {}, across_amax = {};
};
void quantize_both(Context& context, const QuantizeBoth& args);

/// What an op that makes y [R, C] leaves of it for a product, from the values that it stores, or
/// would store where y is left out: the bits of a call of quantize, or of absolute_max.
///   codes  e4m3 in blocks of 1 x 128, padded; of bf16 rows whose C, a multiple of 8, is one part
///          from the beginning of a block
///   amax   [P] i32, as absolute_max has it: of P equal parts of the columns
struct QuantizedOutput {
  QuantizedView codes = {};
  TensorView amax_P = {};
};
/// The same by passes of their own, of y where it stands.
void leave_quantized(Context& context, const QuantizedOutput& out, ConstTensorView y_RC);

/// scales = 1 / s for amaxes of any shape, in whose place they may be written.
void scales_of(Context& context, TensorView scales, ConstTensorView amax, DType format);

/// x[r, c] = code * scale in f32, rounded to x's type, f32|bf16, where it is stored.   x [R, C]
void dequantize(Context& context, TensorView x, const ConstQuantizedView& from);

/// The same codes and scales in another order: transposed, padded or both. to.rows and to.columns
/// are from's, or from's exchanged with `transpose`.
void reorder(Context& context, const QuantizedView& to, const ConstQuantizedView& from,
             Transpose transpose);

}  // namespace trireme
