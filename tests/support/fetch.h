#pragma once
// The tensors of a context's device as the host sees them.

#include "store/host_state.h"
#include "tensor/transfer.h"

namespace trireme {

/// Brings the copies in `host` up to date with `state`, of which it was made.
inline void fetch(Context& context, const State& state, HostState& host) {
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    const StateTensor& from = state.tensors[i];
    std::byte* to = host.state().tensors[i].data;
    if (to == from.data || from.box.shape.count() == 0) continue;
    const std::size_t element = size_of(from.dtype);
    const std::int64_t rows = from.contiguous() ? 1 : from.box.shape[0];
    const std::int64_t width = from.box.shape.count() / rows;
    const auto bytes = static_cast<std::size_t>(width) * element;
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto at = static_cast<std::size_t>(row * from.row_stride) * element;
      copy_out(context, {to + static_cast<std::size_t>(row) * bytes, bytes},
               ConstTensorView(from.data + at, from.dtype, {width}));
    }
  }
}

}  // namespace trireme
