#pragma once
// RMSNorm (Zhang, Sennrich 2019) and LayerNorm (Ba et al. 2016), with the residual add.

#include <cstdint>

#include "device/context.h"
#include "kernels/quantize/quantize.h"

namespace trireme {

/// kNone: y = s, for a branch that has its norm elsewhere.
enum class NormOp : std::uint8_t { kRms, kLayer, kNone };

/// s = x + residual (stored, rounded to its type), then
///   RMS:    y[t,c] = s[t,c] * rstd[t] * w[c]
///           rstd = 1 / sqrt(mean_c s^2 + eps)
///   layer:  y[t,c] = (s[t,c] - mean[t]) * rstd[t] * w[c] + bias[c]
///           rstd = 1 / sqrt(var_c s + eps)
///   none:   y[t,c] = s[t,c]
/// where w = weight_offset + weight: 1 for weights that are stored around 0 (Gemma).
///
///   y, x, residual, sum   [T, C]  f32|bf16, all of one type; sum may be x or residual
///   weight, bias          [C]     as y; bias for layer norm only, optional
///   mean, rstd            [T]     f32, kept for the backward pass; mean for layer norm only
/// Without a norm there are no weight, bias, mean and rstd.
/// `quantized`, of y, is for a norm alone; with its codes y may be left out.
/// Without residual, sum is not given and s = x. Sums in f32, the variance in two passes.
/// Deterministic; a token's bits do not depend on the others.
struct NormForward {
  NormOp op = NormOp::kRms;
  double eps = 1e-5;
  float weight_offset = 0;
  TensorView y_TC, sum_TC, mean_T, rstd_T;
  ConstTensorView x_TC, residual_TC, weight_C, bias_C;
  QuantizedOutput quantized = {};
};
void norm_forward(Context& context, const NormForward& args);

/// The gradient of s: dx = dresidual + the norm's backward of dy; n: normalised s, g: dy w:
///   RMS:    rstd (g - n mean_c(g n))        layer:  rstd (g - mean_c g - n mean_c(g n))
///   none:   dy
///   dweight[c] += sum_t dy n,  dbias[c] += sum_t dy
///
///   dx, dresidual  [T, C]  as dy (dresidual optional; dx may be dy or dresidual)
///   s              [T, C]  the input of the norm: `sum` of the forward pass, or x
///   dweight, dbias [C]     f32, accumulated; either may be left out
///   y              [T, C]  where given: becomes the forward's y once more, bit for bit (with its
///                          bias), so that it need not be kept; may be dy, if dx is not
///   amax           [1] i32, optional, for a norm alone: of dx, as absolute_max has it
/// Deterministic for a given number of threads; on a GPU for a given shape, whatever the GPU.
struct NormBackward {
  NormOp op = NormOp::kRms;
  float weight_offset = 0;
  TensorView dx_TC, dweight_C, dbias_C, y_TC;
  ConstTensorView dy_TC, dresidual_TC, s_TC, weight_C, bias_C, mean_T, rstd_T;
  TensorView amax_1 = {};
};
void norm_backward(Context& context, const NormBackward& args);

}  // namespace trireme
