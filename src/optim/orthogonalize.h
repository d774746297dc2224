#pragma once

#include "base/shape.h"
#include "device/context.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// Memory of one call, and the matrix itself. n is the smaller of the matrix's sides.
struct OrthogonalizeBuffers {
  TensorView matrix;     ///< [R, C] f32|bf16
  TensorView sum;        ///< [R, C] f32
  TensorView gram_NN;    ///< of the matrix's type
  TensorView square_NN;  ///< f32
};

/// matrix = a matrix near U V^T, where U S V^T is the matrix before: its singular values end
/// between some 0.7 and 1.2. Five Newton-Schulz steps of the quintic of Jordan et al. 2024, as
/// torch.optim.Muon makes them, over the Gram matrix of the shorter side:
///
///   X = matrix / max(|matrix|_F, 1e-7)
///   A = X X^T;  X = a X + (b A + c A A) X      or A = X^T X and X = a X + X (b A + c A A)
///
/// Products take operands of the matrix's type and add in f32. The norm is an exact sum of squares.
/// So bits depend on what those of gemm do alone: shape, threads and CPU, or the GPU's model. On a
/// GPU waits for the norm.
void orthogonalize(Context& context, const OrthogonalizeBuffers& buffers);

/// Its operations: of r x c, r <= c, five times 4 r^2 c + 2 r^3.
double orthogonalize_operations(const Shape& matrix);

}  // namespace trireme
