#pragma once
// For the span that each op opens around its call: how many bytes its operands have.

#include "base/op_trace.h"
#include "tensor/heads_view.h"
#include "tensor/tensor_view.h"

namespace trireme {

inline std::int64_t operand_bytes(const ConstTensorView& view) {
  return view.given() ? static_cast<std::int64_t>(view.bytes()) : 0;
}
inline std::int64_t operand_bytes(const ConstHeadsView& view) {
  return view.tokens * view.heads * view.head_dim * static_cast<std::int64_t>(size_of(view.dtype));
}

/// Of the operands that are given. Name one twice that is read and written.
template <class... Views>
std::int64_t bytes_of(const Views&... views) {
  return (operand_bytes(views) + ...);
}

}  // namespace trireme
