#pragma once
// Adafactor (Shazeer, Stern 2018) as torch.optim.Adafactor has it, in the parts between which ranks
// that hold parts of a tensor join what they have found; many tensors in one call. Sums are exact
// sums of rounded squares: how ranks cut a tensor changes no bit of them.
//
// With g = gradient * gradient_scale of a matrix [R, C], or a vector [N]:
//   row_var += share (mean of g^2 over columns - row_var);  col_var likewise;  variance of vectors
//   v = row_var / mean * col_var;   u = g / sqrt(max(v, eps^2)),  eps = 2^-23, that of fp32
//   parameter = parameter * keep - step * u
// The same bits on every device, for any threads.

#include <cstdint>
#include <span>

#include "base/exact_sum.h"
#include "device/context.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// The rows or the columns of a matrix.
struct AdafactorLines {
  TensorView variance;     ///< f32, one for each line: row_var, col_var
  TensorView largest;      ///< i32: bits of the largest magnitudes of gradients, in whole lines
  TensorView sums;         ///< f64
  std::int64_t terms = 0;  ///< elements of a whole line, of which a rank may have some
};

/// A tensor, or the part of a rank.
///   parameter  f32 [R, C] or [N];  copy: bf16 copy of the new value, optional
///   gradient   f32, likewise, or its rows by gradient_slots (kernels/update/update.h)
///   variance   f32 [N], of a vector, which has no lines
///   words      [68] of 8 bytes, f64 by name: the words of an ExactSum
///   scalars    f32 [3]: mean, keep, step; mean: of all row_var, eps at least
struct AdafactorTensor {
  TensorView parameter, copy;
  ConstTensorView gradient, gradient_slots;
  TensorView variance;
  AdafactorLines rows, columns;
  TensorView words;
  ConstTensorView scalars;
};

/// largest = max(largest, of this part's), as integers. The caller clears them before.
void adafactor_largest(Context& context, std::span<const AdafactorTensor> tensors);
/// sums += squares of this part's gradients, each rounded to a multiple of what `largest` of its
/// line and `terms` decide, so small that all of a line add up exactly; words += squares of
/// parameters, rounded to multiples of 2^-40.
void adafactor_sums(Context& context, std::span<const AdafactorTensor> tensors);
/// What all elements of a tensor have in common in this step.
struct AdafactorStep {
  float gradient_scale = 1;
  double share = 1;  ///< of the new squares, t^-0.8
};
/// The variances of lines, from sums; sums = these variances.
void adafactor_lines(Context& context, std::span<const AdafactorTensor> tensors,
                     const AdafactorStep& step);
/// The variances of vectors; words += squares of u, rounded to multiples of 2^-24.
void adafactor_squares(Context& context, std::span<const AdafactorTensor> tensors,
                       const AdafactorStep& step);
void adafactor_update(Context& context, std::span<const AdafactorTensor> tensors,
                      float gradient_scale);

}  // namespace trireme
