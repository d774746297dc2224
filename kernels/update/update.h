#pragma once
// What optimizers do to parameters, many tensors in one call: AdamW (Loshchilov, Hutter 2019) as
// torch.optim.AdamW computes it, Lion (Chen et al. 2023) as lion-pytorch does, schedule-free AdamW
// (Defazio et al. 2024) as schedulefree does, and averages.

#include <span>

#include "device/context.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// One tensor (or a rank's rows of it), all views of one count.
///   parameter, gradient, exp_avg  f32;  copy: bf16 copy of the new value, optional
///   exp_avg_sq  f32, not of Lion
///   kept  f32, of so many times the count: parameter, exp_avg and, where there is one, exp_avg_sq
///         as they were; optional
///   gradient_slots  i32, one for each row of the parameter, which is [R, C] then: the row of the
///                   gradient, [N, C], that is this row's; optional, on a CPU only
struct UpdateTensor {
  TensorView parameter, copy, exp_avg, exp_avg_sq;
  ConstTensorView gradient;
  double weight_decay = 0;
  double lr_scale = 1;  ///< of this tensor's lr
  TensorView kept = {};
  ConstTensorView gradient_slots = {};
};

struct AdamWConstants {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
};

/// What changes from step to step, read when the op runs.
struct AdamWScalars {
  double lr = 0;
  double bias_correction1 = 1,
         bias_correction2 = 1;  ///< 1 - beta^t, t = applied updates, this one included
  float gradient_scale = 1;     ///< the clip coefficient
};

/// Of all ops here: elementwise in f32 with scalars prepared in double; the same bits for any split
/// of a tensor, and on every device but for subnormal values of the bf16 copy (square roots and
/// divisions are IEEE's, each fused operation the same). Deterministic. On a GPU one launch for all
/// tensors, whose table stays there: only the scalars go to the device, in the order of the stream.
///
///   lr = lr * lr_scale,  g = gradient * gradient_scale
///   p -= lr wd p;   m += (1 - b1) (g - m);   v = b2 v + (1 - b2) g^2
///   p -= (lr / bias_correction1) m / (sqrt(v) / sqrt(bias_correction2) + eps)
void adamw_update(Context& context, std::span<const UpdateTensor> tensors,
                  const AdamWConstants& constants, const AdamWScalars& scalars);

struct LionConstants {
  double beta1 = 0.9, beta2 = 0.99;
};

/// With lr and g as above, and the sign of 0 being 0:
///   p -= lr wd p;   p -= lr sign(b1 m + (1 - b1) g);   m = b2 m + (1 - b2) g
void lion_update(Context& context, std::span<const UpdateTensor> tensors,
                 const LionConstants& constants, double lr, float gradient_scale);

struct ScheduleFreeConstants {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
};

struct ScheduleFreeScalars {
  double lr = 0;
  double bias_correction2 = 1;  ///< 1 - beta2^t, t = applied updates, this one included
  double share = 1;             ///< of the new z in the average: this step's weight / all weights
  float gradient_scale = 1;
};

/// x is `parameter`, z `exp_avg`; the gradient is that at y, which `copy` holds, bf16 or f32. With
/// lr and g as above:
///   y = x + (1 - b1) (z - x);   v = b2 v + (1 - b2) g^2
///   z -= lr (g / (sqrt(v) / sqrt(bias_correction2) + eps) + wd y);   x += share (z - x)
///   copy = x + (1 - b1) (z - x)
void schedule_free_update(Context& context, std::span<const UpdateTensor> tensors,
                          const ScheduleFreeConstants& constants,
                          const ScheduleFreeScalars& scalars);
/// That copy alone, with the bits of an update's; the tensors' other views are not looked at.
void schedule_free_copy(Context& context, std::span<const UpdateTensor> tensors, double beta1);

/// f32 both, of one count.
struct AveragedTensor {
  TensorView average;
  ConstTensorView parameter;
};

///   average += (1 - decay) (parameter - average)
void average_update(Context& context, std::span<const AveragedTensor> tensors, double decay);

}  // namespace trireme
