#pragma once

#include <span>

#include "base/exact_sum.h"
#include "device/context.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// sum += the squares of all elements of all gradients: of each row (dim 0; a vector is one row) in
/// f64 in a tree by the row's length; rows are added exactly. So the result is the same everywhere.
///
///   gradients  each [R, C] or [C]  f32
/// A non-finite element makes the sum non-finite, and nothing else does. Deterministic. The result
/// stands in host memory: on a GPU the call waits for it, once for all tensors.
void grad_norm_accumulate(Context& context, ExactSum& sum,
                          std::span<const ConstTensorView> gradients);

/// The same, added to the words of an ExactSum (ExactSum::words, here [68] of 8 bytes, f64 by name
/// alone) where the context computes; a GPU is not waited for. At most 2^20 such calls and 2^30
/// rows go into one sum.
void add_squares(Context& context, TensorView words, std::span<const ConstTensorView> gradients);

}  // namespace trireme
