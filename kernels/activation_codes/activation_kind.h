#pragma once

#include <cstdint>

namespace trireme {

/// What an MLP has between its products.
enum class ActivationKind : std::uint8_t {
  kSwiglu,  ///< a gated linear unit (kernels/glu), of silu
  kGeglu,   ///< and of gelu
  kGelu,    ///< kernels/gelu
};
/// Parts of F columns that it reads.
constexpr std::int64_t parts_of(ActivationKind kind) {
  return kind == ActivationKind::kGelu ? 1 : 2;
}

/// What a trace and a refusal call a pass of it.
constexpr const char* forward_codes_name(ActivationKind kind) {
  return kind == ActivationKind::kSwiglu  ? "swiglu_forward_codes"
         : kind == ActivationKind::kGeglu ? "geglu_forward_codes"
                                          : "gelu_forward_codes";
}
constexpr const char* backward_codes_name(ActivationKind kind) {
  return kind == ActivationKind::kSwiglu  ? "swiglu_backward_codes"
         : kind == ActivationKind::kGeglu ? "geglu_backward_codes"
                                          : "gelu_backward_codes";
}

}  // namespace trireme
