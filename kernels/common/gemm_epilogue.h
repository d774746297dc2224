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
  kSwigluBackward,
  kGeglu,
  kGegluBackward
};

/// Of two products beside each other, gate and up.
constexpr bool is_glu(GemmEpilogue epilogue) {
  return epilogue == GemmEpilogue::kSwiglu || epilogue == GemmEpilogue::kGeglu;
}
constexpr bool is_glu_backward(GemmEpilogue epilogue) {
  return epilogue == GemmEpilogue::kSwigluBackward || epilogue == GemmEpilogue::kGegluBackward;
}

}  // namespace trireme
