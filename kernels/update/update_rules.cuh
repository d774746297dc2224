#pragma once
// An update of one element. Operation for operation what the CPU does (update_cpu.h), so that both
// have the same bits: the intrinsics round where they stand and are not fused; square root and
// division are IEEE's.

#include "kernels/common/cuda.cuh"
#include "kernels/update/update_table.h"

namespace trireme::cuda {

struct StepConstants {
  float gradient_scale, inverse_sqrt_correction2, step_size, lr_decay, share;
  UpdateConstants of;
};

/// Of a tensor, whose scale and decay are those of its table.
__device__ __forceinline__ StepConstants step_constants(const UpdateScalars& step,
                                                        const UpdateConstants& of, double lr_scale,
                                                        double decay) {
  return {step.gradient_scale,
          step.inverse_sqrt_correction2,
          static_cast<float>(step.step_size * lr_scale),
          static_cast<float>(step.lr * decay),
          step.share,
          of};
}

struct AdamW {
  static constexpr int kMoments = 2;
  static __device__ __forceinline__ void update(float& p, float& exp_avg, float& exp_avg_sq,
                                                float gradient, const StepConstants& c) {
    const float g = __fmul_rn(gradient, c.gradient_scale);
    const float m = __fmaf_rn(c.of.one_minus_beta1, __fadd_rn(g, -exp_avg), exp_avg);
    const float v =
        __fmaf_rn(c.of.beta2, exp_avg_sq, __fmul_rn(__fmul_rn(c.of.one_minus_beta2, g), g));
    const float denominator = __fmaf_rn(sqrtf(v), c.inverse_sqrt_correction2, c.of.eps);
    p = __fmaf_rn(-c.step_size, m / denominator, __fmaf_rn(-c.lr_decay, p, p));
    exp_avg = m;
    exp_avg_sq = v;
  }
  /// What products read.
  static __device__ __forceinline__ float copied(float p, float, const UpdateConstants&) {
    return p;
  }
};

struct Lion {
  static constexpr int kMoments = 1;
  static __device__ __forceinline__ void update(float& p, float& exp_avg, float&, float gradient,
                                                const StepConstants& c) {
    const float g = __fmul_rn(gradient, c.gradient_scale);
    const float u = __fmaf_rn(c.of.beta1, exp_avg, __fmul_rn(c.of.one_minus_beta1, g));
    const float sign = u > 0 ? 1.0F : u < 0 ? -1.0F : u;
    p = __fmaf_rn(-c.step_size, sign, __fmaf_rn(-c.lr_decay, p, p));
    exp_avg = __fmaf_rn(c.of.beta2, exp_avg, __fmul_rn(c.of.one_minus_beta2, g));
  }
  static __device__ __forceinline__ float copied(float p, float, const UpdateConstants&) {
    return p;
  }
};

/// Schedule-free's y.
__device__ __forceinline__ float between(float x, float z, float one_minus_beta1) {
  return __fmaf_rn(one_minus_beta1, __fadd_rn(z, -x), x);
}

struct ScheduleFree {
  static constexpr int kMoments = 2;
  static __device__ __forceinline__ void update(float& x, float& z, float& exp_avg_sq,
                                                float gradient, const StepConstants& c) {
    const float g = __fmul_rn(gradient, c.gradient_scale);
    const float v =
        __fmaf_rn(c.of.beta2, exp_avg_sq, __fmul_rn(__fmul_rn(c.of.one_minus_beta2, g), g));
    const float denominator = __fmaf_rn(sqrtf(v), c.inverse_sqrt_correction2, c.of.eps);
    const float y = between(x, z, c.of.one_minus_beta1);
    z = __fmaf_rn(-c.step_size, g / denominator, __fmaf_rn(-c.lr_decay, y, z));
    x = __fmaf_rn(c.share, __fadd_rn(z, -x), x);
    exp_avg_sq = v;
  }
  static __device__ __forceinline__ float copied(float x, float z, const UpdateConstants& of) {
    return between(x, z, of.one_minus_beta1);
  }
};

}  // namespace trireme::cuda
