#pragma once
// Arithmetic in other directions than to the nearest, and what an approximate instruction gives.
#include "kernels/ptx_host/machine.h"
#include "kernels/ptx_host/numbers.h"

namespace trireme::ptx {

enum class Calc : std::uint8_t { kAdd, kSub, kMul, kFma, kMin, kMax, kAbs, kNeg, kDiv };

/// Of f32. detail: calc, round, flush
bool run_rounded(Warp& warp, const Instruction& in, std::uint32_t mask);

/// The exact result, or, with TRIREME_PTX_APPROXIMATE=worst, one off by the relative `error` that
/// the manual allows, up or down by the bits of `x`. A result that a float holds exactly stays.
float approximated(double exact, double error, float x);

}  // namespace trireme::ptx
