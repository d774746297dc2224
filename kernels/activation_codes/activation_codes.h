#pragma once
// Of what an MLP's activation makes, codes in place of rows, where both products that read it take
// blocks of 1 x 128: the bits of calls of quantize, of what kernels/glu and kernels/gelu would
// store.
//
//   x      bf16 [T, X], as the first product has left it: gate and up [T, 2F], or [T, F]. F is a
//          multiple of 8
//   dact   bf16 [T, F]

#include "device/context.h"
#include "kernels/activation_codes/activation_kind.h"
#include "kernels/quantize/quantize.h"
#include "tensor/tensor_view.h"

namespace trireme {

///   act    e4m3 [T, F], padded, as QuantizedOutput has it
void activation_forward_codes(Context& context, ActivationKind kind, const QuantizedView& act_TF,
                              ConstTensorView x_TX);

///   dx          e4m3|e5m2 [T, X], padded, where gate's columns and up's are parts from the
///               beginning of a block
///   dx_turned   its transpose, [X, T]
///   act_turned  e4m3 [F, T], padded
///   rows        dx itself, bf16 [T, X], for what else reads it; may be x
struct ActivationGradient {
  QuantizedView dx, dx_turned, act_turned;
  TensorView rows_TX = {};
};
void activation_backward_codes(Context& context, ActivationKind kind, const ActivationGradient& out,
                               ConstTensorView dact_TF, ConstTensorView x_TX);

}  // namespace trireme
