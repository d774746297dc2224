#pragma once
// Gated linear units (Shazeer 2020): one half of the columns passes through the activation of the
// other.

#include "device/context.h"
#include "kernels/glu/glu_gate.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// act[t,f] = a(g) u,  g = gate_up[t, f], u = gate_up[t, F + f]
///
///   act [T, F];  gate_up [T, 2F]   f32|bf16, one type
/// Arithmetic in f32, one rounding. Deterministic; an element has the same bits at any place.
void glu_forward(Context& context, GluGate gate, TensorView act_TF, ConstTensorView gate_up_T2F);

/// dgate = dact u a'(g),  dup = dact a(g);  silu' = s (1 + g (1 - s)),  s = sigmoid(g)
/// dgate_up [T, 2F] may be gate_up. `act`, where given, becomes the forward's result again, bit for
/// bit; it may be dact.
void glu_backward(Context& context, GluGate gate, TensorView dgate_up_T2F, ConstTensorView dact_TF,
                  ConstTensorView gate_up_T2F, TensorView act_TF = {});

}  // namespace trireme
