#pragma once

#include <cstdint>

namespace trireme {

/// The activation of a gated linear unit's gate.
enum class GluGate : std::uint8_t {
  kSilu,  ///< SwiGLU: a(g) = g sigmoid(g)
  kGelu,  ///< GeGLU: gelu's, by tanh (kernels/gelu)
};

}  // namespace trireme
