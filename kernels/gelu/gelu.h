#pragma once

#include "device/context.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// GELU in the tanh form (GPT-2's gelu_new):
///   act = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
///
///   act, x  [...]  f32|bf16, one type, any shape; act may be x
/// Arithmetic in f32. Deterministic; an element has the same bits at any place.
void gelu_forward(Context& context, TensorView act, ConstTensorView x);

///   dx = dact gelu'(x)
///
/// dx may be dact or x. `act`, where given, becomes gelu(x) again, bit for bit; it may be dact.
void gelu_backward(Context& context, TensorView dx, ConstTensorView dact, ConstTensorView x,
                   TensorView act = {});

}  // namespace trireme
