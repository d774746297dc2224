#pragma once
// RMS norm of a projection as a whole (OLMo 2), in steps between which ranks that have some of its
// heads each add their sums.

#include "device/context.h"
#include "tensor/heads_view.h"

namespace trireme {

/// dots[t] = sum_{h,d} a[t,h,d] b[t,h,d]
///
///   a, b  heads [T, H, D]  f32|bf16, one type, may be the same;  dots [T] f32
/// Sums in f32. Deterministic; a token's bits do not depend on the others.
void head_dots(Context& context, TensorView dots_T, const ConstHeadsView& a,
               const ConstHeadsView& b);

/// out[t,h,d] = in[t,h,d] * rstd[t] * weight[h,d],   rstd = 1 / sqrt(squares / columns + eps)
///
///   out, in  heads [T, H, D]  f32|bf16; not the same
///   squares  [T]      f32: head_dots of `in` with itself, added over ranks
///   weight   [H * D]  as in
///   columns  over which the mean is taken: H D, of all ranks
/// Arithmetic in f32, one rounding. Deterministic.
struct ProjectionNormForward {
  HeadsView out;
  ConstHeadsView in;
  ConstTensorView squares_T, weight_X;
  std::int64_t columns = 0;
  double eps = 1e-6;
};
void projection_norm_forward(Context& context, const ProjectionNormForward& args);

/// din = rstd (g - n dots / columns),  n = in rstd, g = dout weight;   dweight += sum_t dout n
///
///   din, dout, in  heads [T, H, D]; din may be dout
///   dots     [T] f32: sum over all ranks' columns of g n, which is that of dout out: head_dots of
///            these, also where both were rotated alike behind the norm
///   dweight  [H * D] f32, accumulated; may be left out
/// Deterministic for a given number of threads; on a GPU for a given shape, whatever the GPU.
struct ProjectionNormBackward {
  HeadsView din;
  ConstHeadsView dout, in;
  ConstTensorView squares_T, dots_T, weight_X;
  TensorView dweight_X;
  std::int64_t columns = 0;
  double eps = 1e-6;
};
void projection_norm_backward(Context& context, const ProjectionNormBackward& args);

}  // namespace trireme
