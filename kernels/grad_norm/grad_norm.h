#pragma once

#include "base/exact_sum.h"
#include "device/context.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// sum += the squares of all elements: for each row (dim 0; a vector is one row) squares are summed
/// in f64 in a fixed tree that depends on the row's length alone; rows are added exactly. So the
/// result is the same for any number of threads, and for any cut of the rows over ranks.
///
///   gradient  [R, C] or [C]  f32
/// A non-finite element makes the sum non-finite. Deterministic.
void grad_norm_accumulate(Context& context, ExactSum& sum, ConstTensorView gradient);

}  // namespace trireme
