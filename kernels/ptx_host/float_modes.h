#pragma once
// Arithmetic in other directions than to the nearest, and what an approximate instruction gives.
#include "kernels/ptx_host/machine.h"
#include "kernels/ptx_host/numbers.h"

namespace trireme::ptx {

enum class Calc : std::uint8_t { kAdd, kSub, kMul, kFma, kMin, kMax, kAbs, kNeg, kDiv };

/// Of two numbers the machine takes the one that is no NaN, and -0 is below +0.
template <class T>
T smaller(T a, T b) {
  if (std::isnan(a)) return std::isnan(b) ? std::numeric_limits<T>::quiet_NaN() : b;
  if (std::isnan(b)) return a;
  if (a == b) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}
template <class T>
T larger(T a, T b) {
  if (std::isnan(a)) return std::isnan(b) ? std::numeric_limits<T>::quiet_NaN() : b;
  if (std::isnan(b)) return a;
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}

/// Inlined everywhere: float_modes.cc compiles its copy for directed rounding.
template <class T>
[[gnu::always_inline]] inline T calculate(Calc calc, T a, T b, T c) {
  switch (calc) {
    case Calc::kAdd:
      return a + b;
    case Calc::kSub:
      return a - b;
    case Calc::kMul:
      return a * b;
    case Calc::kFma:
      return std::fma(a, b, c);
    case Calc::kMin:
      return smaller(a, b);
    case Calc::kMax:
      return larger(a, b);
    case Calc::kAbs:
      return std::fabs(a);
    case Calc::kNeg:
      return -a;
    case Calc::kDiv:
      return a / b;
  }
  return a;
}

/// Of f32. detail: calc, round, flush
bool run_rounded(Warp& warp, const Instruction& in, std::uint32_t mask);

/// The exact result, or, with TRIREME_PTX_APPROXIMATE=worst, one off by the relative `error` that
/// the manual allows, up or down by the bits of `x`. A result that a float holds exactly stays.
float approximated(double exact, double error, float x);

}  // namespace trireme::ptx
