#pragma once

#include "config/model_config.h"
#include "tensor/heads_view.h"

namespace trireme {

/// The q, k and v columns of a fused row.
template <class Byte>
struct QkvHeads {
  BasicHeadsView<Byte> q, k, v;
};
template <class Byte>
QkvHeads<Byte> split_heads(const BasicTensorView<Byte>& qkv_TX, const AttentionConfig& config) {
  return {heads_of(qkv_TX, 0, config.heads, config.head_dim),
          heads_of(qkv_TX, config.q_size(), config.kv_heads, config.head_dim),
          heads_of(qkv_TX, config.q_size() + config.k_size(), config.kv_heads, config.value_dim())};
}

/// Columns [first, first + count) of a row, or all, as one head.
template <class Byte>
BasicHeadsView<Byte> one_head(const BasicTensorView<Byte>& x_TX, std::int64_t first,
                              std::int64_t count) {
  return heads_of(x_TX, first, 1, count);
}
template <class Byte>
BasicHeadsView<Byte> one_head(const BasicTensorView<Byte>& x_TX) {
  return one_head(x_TX, 0, x_TX.shape[1]);
}

}  // namespace trireme
