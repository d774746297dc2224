#pragma once
// Activations of one element, in f32: for their ops and for products that end with them, with the
// same bits. Every fused multiply-add is written as such: the compiler has none left to choose.

#include "kernels/common/cuda.cuh"

namespace trireme::cuda {

/// 1 / (1 + e^-x) within a few ulp; 0 where e^-x is beyond 2^126, as good as 1e-38.
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0F, 1.0F + expf(-x)); }

inline constexpr float kGeluTwiceSqrtTwoOverPi = 1.5957691216057308F;
inline constexpr float kGeluCubic = 0.044715F;

/// 0.5 (1 + tanh u) = sigmoid(2u), which does not cancel where tanh is near -1.
__device__ __forceinline__ float gelu_twice_u(float x) {
  return kGeluTwiceSqrtTwoOverPi * fmaf(kGeluCubic * (x * x), x, x);
}
__device__ __forceinline__ float gelu(float x) { return x * sigmoid(gelu_twice_u(x)); }

/// gelu' = s + x s (1 - s) (2u)',  s = sigmoid(2u)
__device__ __forceinline__ float gelu_slope(float x) {
  // Beyond +-64 the slope is 0 or 1; x^3 must not overflow. Not fminf, which takes 64 for NaN.
  const float c = x > 64.0F ? 64.0F : x < -64.0F ? -64.0F : x;
  const float s = sigmoid(gelu_twice_u(c));
  const float du = kGeluTwiceSqrtTwoOverPi * fmaf(3 * kGeluCubic * c, c, 1.0F);
  return fmaf(c * du, s * (1.0F - s), s);
}

__device__ __forceinline__ float swiglu(float gate, float up) { return gate * sigmoid(gate) * up; }

struct GluGradient {
  float gate, up, act;  ///< act: the unit's result once more
};
__device__ __forceinline__ GluGradient swiglu_gradient(float gate, float up, float dact) {
  const float s = sigmoid(gate), gs = gate * s;
  return {dact * up * s * fmaf(gate, 1.0F - s, 1.0F), dact * gs, gs * up};
}

/// gate sigmoid(alpha gate) (up + 1) of clamped gate and up; NaN passes, which fminf would not let.
struct ClampedGlu {
  float alpha, gate, up1, s;
  bool gate_ends, up_ends;

  __device__ __forceinline__ ClampedGlu(float g, float u, float alpha_, float limit)
      : alpha(alpha_), gate_ends(g > limit), up_ends(u > limit || u < -limit) {
    gate = gate_ends ? limit : g;
    up1 = (u > limit ? limit : u < -limit ? -limit : u) + 1.0F;
    s = sigmoid(alpha * gate);
  }
  [[nodiscard]] __device__ __forceinline__ float act() const { return gate * s * up1; }
  [[nodiscard]] __device__ __forceinline__ float dgate(float dact) const {
    return gate_ends ? 0.0F : dact * up1 * s * fmaf(alpha * gate, 1.0F - s, 1.0F);
  }
  [[nodiscard]] __device__ __forceinline__ float dup(float dact) const {
    return up_ends ? 0.0F : dact * (gate * s);
  }
};

__device__ __forceinline__ float geglu(float gate, float up) { return gelu(gate) * up; }
__device__ __forceinline__ GluGradient geglu_gradient(float gate, float up, float dact) {
  const float value = gelu(gate);
  return {dact * up * gelu_slope(gate), dact * value, value * up};
}

}  // namespace trireme::cuda
