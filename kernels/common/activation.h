#pragma once
// Activations of vectors on a CPU, in f32.

#include "kernels/common/simd.h"

namespace trireme::TRIREME_ISA {

inline constexpr float kGeluTwiceSqrtTwoOverPi = 1.5957691216057308F;
inline constexpr float kGeluCubic = 0.044715F;

/// 0.5 (1 + tanh u) = sigmoid(2u), which does not cancel where tanh is near -1.
TRIREME_INLINE F32 gelu_twice_u(F32 x) {
  const F32 x2 = x * x;
  return F32::broadcast(kGeluTwiceSqrtTwoOverPi) * fma(F32::broadcast(kGeluCubic) * x2, x, x);
}
TRIREME_INLINE F32 gelu(F32 x) { return x * sigmoid(gelu_twice_u(x)); }

/// gelu' = s + x s (1 - s) (2u)',  s = sigmoid(2u)
TRIREME_INLINE F32 gelu_slope(F32 x) {
  // Beyond +-64 the slope is 0 or 1 for all the digits there are; x^3 must not overflow to 0 * inf.
  const F32 c = max(F32::broadcast(-64.0F), min(F32::broadcast(64.0F), x));
  const F32 one = F32::broadcast(1.0F), s = sigmoid(gelu_twice_u(c));
  const F32 du =
      F32::broadcast(kGeluTwiceSqrtTwoOverPi) * fma(F32::broadcast(3 * kGeluCubic) * c, c, one);
  return fma(c * du, s * (one - s), s);
}

/// What the gate of a gated linear unit gives (GluGate): a(g), and d a'(g).
struct SiluGate {
  F32 gate, s;
  TRIREME_INLINE explicit SiluGate(F32 g) : gate(g), s(sigmoid(g)) {}
  [[nodiscard]] TRIREME_INLINE F32 value() const { return gate * s; }
  [[nodiscard]] TRIREME_INLINE F32 gradient(F32 d) const {
    const F32 one = F32::broadcast(1.0F);
    return d * s * fma(gate, one - s, one);
  }
};
struct GeluGate {
  F32 gate;
  TRIREME_INLINE explicit GeluGate(F32 g) : gate(g) {}
  [[nodiscard]] TRIREME_INLINE F32 value() const { return gelu(gate); }
  [[nodiscard]] TRIREME_INLINE F32 gradient(F32 d) const { return d * gelu_slope(gate); }
};

}  // namespace trireme::TRIREME_ISA
