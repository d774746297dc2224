#pragma once
// The lengths of a weight's rows as parameters of their own (DoRA, Liu et al. 2024), applied to
// what the product has made. The length of W's row is no function of what is trained: no gradient
// goes through it.

#include "device/context.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// inverse[n] = 1 / sqrt(squares[n]),  gain[n] = magnitude[n] inverse[n]
///
///   gain, inverse, squares [N] f32;  magnitude [N] f32|bf16, or none: gain is 1;  no two share
///   memory
/// A row of zeros has no direction: its inverse is infinite.
void magnitude_gains(Context& context, TensorView gain_N, TensorView inverse_N,
                     ConstTensorView magnitude_N, ConstTensorView squares_N);
/// dmagnitude[n] += dgain[n] inverse[n].   all [N] f32
void magnitude_gradient(Context& context, TensorView dmagnitude_N, ConstTensorView dgain_N,
                        ConstTensorView inverse_N);

/// y[t,n] = gain[n] v[t,n] (+ bias[n])
///
///   y, v [T, N] f32|bf16, one type; y may be v;  gain [N] f32;  bias [N] of v's type, optional
/// Arithmetic in f32, one rounding. An element has the same bits at any place.
void magnitude_forward(Context& context, TensorView y_TN, ConstTensorView v_TN,
                       ConstTensorView gain_N, ConstTensorView bias_N = {});

///   dv[t,n] = gain[n] dy[t,n];   dgain[n] += sum_t dy[t,n] v[t,n]
///
///   dv optional, as gain is then, or dy's memory; dgain [N] f32. Sums as a norm's weights': f32,
///   tokens in blocks
/// of 64; threads and shape alone decide.
struct MagnitudeBackward {
  TensorView dv_TN, dgain_N;
  ConstTensorView dy_TN, v_TN, gain_N;
};
void magnitude_backward(Context& context, const MagnitudeBackward& args);

}  // namespace trireme
