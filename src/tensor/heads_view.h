#pragma once

#include "tensor/tensor_view.h"

namespace trireme {

/// Heads of T tokens inside a wider row (a part of a fused q, k, v row, or a cache): element (t, h,
/// d) stands at data[t * token_stride + h * head_dim + d].
template <class Byte>
struct BasicHeadsView {
  Byte* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t tokens = 0, heads = 0, head_dim = 0;
  std::int64_t token_stride = 0;  ///< in elements

  BasicHeadsView() = default;
  BasicHeadsView(Byte* data_, DType dtype_, std::int64_t tokens_, std::int64_t heads_,
                 std::int64_t head_dim_, std::int64_t token_stride_)
      : data(data_),
        dtype(dtype_),
        tokens(tokens_),
        heads(heads_),
        head_dim(head_dim_),
        token_stride(token_stride_) {}
  template <class Other>
  requires std::is_convertible_v<Other*, Byte*> BasicHeadsView(const BasicHeadsView<Other>& o)
      : BasicHeadsView(o.data, o.dtype, o.tokens, o.heads, o.head_dim, o.token_stride) {}

  [[nodiscard]] BasicHeadsView rows(std::int64_t begin, std::int64_t count) const {
    expect(begin >= 0 && count >= 0 && begin + count <= tokens, "heads of tokens {}+{} of {}",
           begin, count, tokens);
    BasicHeadsView part = *this;
    part.data += static_cast<std::size_t>(begin * token_stride) * size_of(dtype);
    part.tokens = count;
    return part;
  }
};

using HeadsView = BasicHeadsView<std::byte>;
using ConstHeadsView = BasicHeadsView<const std::byte>;

/// Columns [column, column + heads * head_dim) of a [T, X] tensor.
template <class Byte>
BasicHeadsView<Byte> heads_of(const BasicTensorView<Byte>& x_TX, std::int64_t column,
                              std::int64_t heads, std::int64_t head_dim) {
  expect(x_TX.shape.rank() == 2 && column + heads * head_dim <= x_TX.shape[1],
         "columns {}+{}*{} of {}", column, heads, head_dim, x_TX.shape.text());
  return {x_TX.data + static_cast<std::size_t>(column) * size_of(x_TX.dtype),
          x_TX.dtype,
          x_TX.shape[0],
          heads,
          head_dim,
          x_TX.shape[1]};
}

}  // namespace trireme
