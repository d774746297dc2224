#pragma once
// What Muon (Jordan et al. 2024) does beside products, as torch.optim.Muon does it: its momentum,
// the polynomial that takes a matrix towards the nearest orthogonal one, and its update.

#include <span>

#include "device/context.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// Rows of a matrix, all views of one count.
///   momentum, gradient  f32;  update  f32|bf16, the same type in one call; optional
struct MuonMomentumTensor {
  TensorView momentum;
  ConstTensorView gradient;
  TensorView update = {};
};

/// Of both ops on many tensors: elementwise in f32, so that any split has the same bits, on every
/// device but for subnormal values in bf16; on a GPU one launch, whose table stays there.
///
/// With g = gradient * gradient_scale (Nesterov's):
///   m += (1 - momentum) (g - m);   update = g + momentum (m - g)
void muon_momentum(Context& context, std::span<const MuonMomentumTensor> tensors, double momentum,
                   float gradient_scale);

///   parameter f32;  copy: bf16 copy of the new value, optional;  update  f32|bf16 as above
struct MuonUpdateTensor {
  TensorView parameter, copy;
  ConstTensorView update;
  double step = 1;   ///< times lr: what the update is taken by
  double decay = 0;  ///< times lr: what of the parameter goes
};

///   p -= lr decay p;   p -= lr step update
void muon_update(Context& context, std::span<const MuonUpdateTensor> tensors, double lr);

/// The matrix that products read, and the sum that they add to, which begins with what was rounded:
/// so the rounding is one of the matrix, and later steps correct it.
///   operand = scale sum;   sum = factor operand          operand f32|bf16, sum f32, of one count
void newton_schulz_operand(Context& context, TensorView operand, TensorView sum, float scale,
                           float factor);

/// gram = linear gram + quadratic square, in f32 and rounded once.   gram f32|bf16;  square f32
void newton_schulz_polynomial(Context& context, TensorView gram, ConstTensorView square,
                              float linear, float quadratic);

}  // namespace trireme
