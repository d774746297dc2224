#pragma once

#include <cstdint>

namespace trireme {

/// What is done with y = op(a) op(b) (+ bias) before it is c; formulas in gemm.h.
enum class GemmEpilogue : std::uint8_t {
  kNone,
  kAddResidual,
  kGelu,
  kGeluBackward,
  kSwiglu,
  kSwigluBackward
};

}  // namespace trireme
