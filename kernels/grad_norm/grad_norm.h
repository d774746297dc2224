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

}  // namespace trireme
