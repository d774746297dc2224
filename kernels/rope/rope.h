#pragma once
// Rotary position embedding (Su et al. 2021) in the half-split layout of transformers, with the RMS
// norm of each head that Qwen3 puts before it fused in.

#include "device/context.h"
#include "tensor/heads_view.h"

namespace trireme {

/// n = in, or with `weight`, rounded to the type,
///   n[t,h,d] = in[t,h,d] * rstd[t,h] * w[d],   rstd = 1 / sqrt(mean_d in^2 + eps)
/// with w = weight_offset + weight, as in kernels/norm.
/// Then, for j < R/2 with c = cos[p,j], s = sin[p,j], p = positions[t]:
///   out[j] = n[j] c - n[j + R/2] s,   out[j + R/2] = n[j + R/2] c + n[j] s
/// and out = n in the dims from R on, which do not rotate.
///
///   out, in    heads [T, H, D]  f32|bf16; out may be in where no weight is given
///   positions  [T]     i32, in [0, P); on a GPU the caller has made sure of that
///   cos_sin    [P, R]  f32: R/2 cosines, then R/2 sines of each position; R and D are even, R <= D
///   weight     [D]     as in, optional;   rstd [T, H] f32, kept for the backward pass
/// Arithmetic in f32. Deterministic.
struct RopeForward {
  HeadsView out;
  ConstHeadsView in;
  ConstTensorView positions_T, cos_sin_PR;
  ConstTensorView weight_D;
  TensorView rstd_TH;
  double eps = 1e-6;
  float weight_offset = 0;
};
void rope_forward(Context& context, const RopeForward& args);

/// dn = the rotation by the opposite angle of dout; without weight din = dn, else
///   din = rstd (g - n mean_d(g n)), n = in rstd, g = dn w;   dweight[d] += sum_{t,h} dn n
///
///   din, dout  heads [T, H, D]  f32|bf16; din may be dout
///   in, weight, rstd as in the forward pass;  dweight [D] f32, accumulated
/// Deterministic for a given number of threads; on a GPU for a given shape, whatever the GPU.
struct RopeBackward {
  HeadsView din;
  ConstHeadsView dout, in;
  ConstTensorView positions_T, cos_sin_PR;
  ConstTensorView weight_D, rstd_TH;
  TensorView dweight_D;
  float weight_offset = 0;
};
void rope_backward(Context& context, const RopeBackward& args);

}  // namespace trireme
