#pragma once
// An update of a vector of elements, for files compiled for each instruction set.

#include "kernels/common/simd.h"
#include "kernels/update/update_table.h"

namespace trireme::TRIREME_ISA {

enum class UpdateRule : std::uint8_t { kAdamW, kLion, kScheduleFree };

/// What all tensors of a step have in common.
struct StepConstants {
  F32 gradient_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, inverse_sqrt_correction2, eps,
      share;
  double lr, step_size;
};
TRIREME_INLINE StepConstants step_constants(const UpdateScalars& step, const UpdateConstants& of) {
  return {F32::broadcast(step.gradient_scale),
          F32::broadcast(of.beta1),
          F32::broadcast(of.one_minus_beta1),
          F32::broadcast(of.beta2),
          F32::broadcast(of.one_minus_beta2),
          F32::broadcast(step.inverse_sqrt_correction2),
          F32::broadcast(of.eps),
          F32::broadcast(step.share),
          step.lr,
          step.step_size};
}

/// The rates of one tensor, whose scale and decay are those of its table.
struct Rates {
  F32 lr_decay, step_size;
};
TRIREME_INLINE Rates rates_of(const StepConstants& c, double lr_scale, double decay) {
  return {F32::broadcast(static_cast<float>(c.lr * decay)),
          F32::broadcast(static_cast<float>(c.step_size * lr_scale))};
}

TRIREME_INLINE F32 sign(F32 x) {
  const F32 zero = F32::zero(), one = F32::broadcast(1.0F);
  return select(zero < x, one, select(x < zero, zero - one, x));
}

/// Schedule-free's y.
TRIREME_INLINE F32 between(F32 x, F32 z, F32 one_minus_beta1) {
  return fma(one_minus_beta1, z - x, x);
}

/// Parameter and moments (of Lion m alone; schedule-free's m is z) become the new ones.
template <UpdateRule kRule>
TRIREME_INLINE void update(F32& p, F32& m, F32& v, F32 gradient, const StepConstants& c,
                           const Rates& rates) {
  const F32 g = gradient * c.gradient_scale;
  if constexpr (kRule == UpdateRule::kLion) {
    const F32 decayed = fnma(rates.lr_decay, p, p);
    p = fnma(rates.step_size, sign(fma(c.beta1, m, c.one_minus_beta1 * g)), decayed);
    m = fma(c.beta2, m, c.one_minus_beta2 * g);
    return;
  }
  v = fma(c.beta2, v, c.one_minus_beta2 * g * g);
  const F32 denominator = fma(sqrt(v), c.inverse_sqrt_correction2, c.eps);
  if constexpr (kRule == UpdateRule::kAdamW) {
    m = fma(c.one_minus_beta1, g - m, m);
    p = fnma(rates.step_size, m / denominator, fnma(rates.lr_decay, p, p));
  } else {
    const F32 y = between(p, m, c.one_minus_beta1);
    m = fnma(rates.step_size, g / denominator, fnma(rates.lr_decay, y, m));
    p = fma(c.share, m - p, p);
  }
}

}  // namespace trireme::TRIREME_ISA
