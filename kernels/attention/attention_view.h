#pragma once
// Which keys of a block some queries see, for the files of attention compiled per instruction set.

#include "kernels/attention/attention_tile.h"

namespace trireme::TRIREME_ISA {

/// Keys [low, high) of a block.
struct KeySpan {
  std::int64_t low, high;
  [[nodiscard]] bool empty() const { return low >= high; }
};

/// The keys of a block that a query at `position` sees, `first_key` being the first it may.
TRIREME_INLINE KeySpan visible_keys(const AttentionKeyBlock& block, std::int64_t position,
                                    std::int64_t first_key) {
  const std::int64_t low = first_key - block.position, high = position - block.position + 1;
  const KeySpan span = {low < 0 ? 0 : low, high > block.count ? block.count : high};
  return span.empty() ? KeySpan{0, 0} : span;
}

/// What some queries see of a block, together.
struct BlockView {
  KeySpan hull = {0, 0};
  bool whole = true;  ///< each query sees each key
};

/// Also writes each query's bounds, as the numbers that lanes are compared with.
TRIREME_INLINE BlockView view_block(const AttentionVisibility& visibility,
                                    const AttentionKeyBlock& block, std::int64_t sequence_row,
                                    std::int64_t query, std::int64_t count, float* low,
                                    float* high) {
  BlockView view;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t* first_key = visibility.first_key;
    const KeySpan span =
        visible_keys(block, visibility.q_position[query + i],
                     first_key == nullptr ? 0 : first_key[sequence_row + query + i]);
    low[i] = static_cast<float>(span.low);
    high[i] = static_cast<float>(span.high);
    view.whole = view.whole && span.low == 0 && span.high == block.count;
    if (span.empty()) continue;
    const bool first = view.hull.empty();
    if (first || span.low < view.hull.low) view.hull.low = span.low;
    if (first || span.high > view.hull.high) view.hull.high = span.high;
  }
  return view;
}

}  // namespace trireme::TRIREME_ISA
