#pragma once
// Gated linear units (Shazeer 2020): one half of the columns passes through the activation of the
// other.

#include "device/context.h"
#include "kernels/glu/glu_gate.h"
#include "kernels/quantize/quantize.h"
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

/// Of bf16, of which codes alone are left, where both products that read them take blocks of 1 x
/// 128: the bits of calls of quantize, of what forward and backward would store. F is a multiple
/// of 8.
///   act           e4m3 [T, F], padded, as QuantizedOutput has it
///   dgate_up      e4m3|e5m2 [T, 2F], padded, where gate's columns and up's are parts from the
///                 beginning of a block; dgate_up_turned: its transpose, [2F, T]
///   act_turned    e4m3 [F, T], padded
void glu_forward_codes(Context& context, GluGate gate, const QuantizedView& act_TF,
                       ConstTensorView gate_up_T2F);
struct GluGradientCodes {
  QuantizedView dgate_up, dgate_up_turned, act_turned;
};
void glu_backward_codes(Context& context, GluGate gate, const GluGradientCodes& out,
                        ConstTensorView dact_TF, ConstTensorView gate_up_T2F);

}  // namespace trireme
