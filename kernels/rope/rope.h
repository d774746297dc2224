#pragma once
// Rotary position embedding (Su et al. 2021) in the half-split layout of transformers, with the RMS
// norm of each head that Qwen3 puts before it fused in.

#include "device/context.h"
#include "kernels/quantize/quantize.h"
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
///   cos_sin    [P, R]  f32: R/2 cosines, then R/2 sines of each position; R and D are even,
///                      0 <= R <= D
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
///   din, dout  heads [T, H, D]  f32|bf16 of one type; din may be dout. Or dout is f32 and is
///                               rounded to din's type first: sums that nobody has rounded yet
///   in, weight, rstd as in the forward pass;  dweight [D] f32, accumulated
///   amax       [1] i32, optional: of din, as absolute_max has it
/// Deterministic for a given number of threads; on a GPU for a given shape, whatever the GPU.
struct RopeBackward {
  HeadsView din;
  ConstHeadsView dout, in;
  ConstTensorView positions_T, cos_sin_PR;
  ConstTensorView weight_D, rstd_TH;
  TensorView dweight_D;
  float weight_offset = 0;
  TensorView amax_1 = {};
};
void rope_backward(Context& context, const RopeBackward& args);

/// The gradient of a projection's q, k and v side by side in bf16, from that of rotated q and k, of
/// which codes alone are left: the bits of quantize_both, of what calls of rope_backward without a
/// norm would store, and of v as it is.
///
///   along, across  [T, X] in three parts of columns, q's, k's and v's, and [X, T]: in blocks of
///                  1 x 128, padded; e4m3|e5m2
///   dout           [T, X]  f32|bf16; f32 is rounded to bf16 first
///   positions, cos_sin  as above: of queries and of keys, rotating as many dims
/// D, the size of q's and k's heads, and v's columns are multiples of 8, R is one of 16. On a GPU
/// dout and cos_sin begin at multiples of 16 bytes.
struct RopeBackwardCodes {
  QuantizedView along, across;
  ConstTensorView dout_TX, positions_T, q_cos_sin_PR, k_cos_sin_PR;
  std::int64_t head_dim = 0;
};
void rope_backward_codes(Context& context, const RopeBackwardCodes& args);

}  // namespace trireme
