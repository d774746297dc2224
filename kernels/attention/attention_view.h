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

/// The first key that a query sees, whose document begins at `first`.
TRIREME_INLINE std::int64_t first_visible(std::int64_t first, std::int64_t position,
                                          std::int64_t reach) {
  return first > position - reach ? first : position - reach;
}

/// What some queries see of a block, together.
struct BlockView {
  KeySpan hull = {0, 0};
  bool whole = true;  ///< each query sees each key
};

/// The smallest and the largest of `count` numbers.
struct Extent {
  std::int64_t low, high;
};
template <class Int>
TRIREME_INLINE Extent extent_of(const Int* numbers, std::int64_t count) {
  Int low = numbers[0], high = numbers[0];
  for (std::int64_t i = 1; i < count; ++i) {
    low = numbers[i] < low ? numbers[i] : low;
    high = numbers[i] > high ? numbers[i] : high;
  }
  return {low, high};
}

/// Of each query the keys that it sees, as the numbers that lanes are compared with.
struct QueryBounds {
  float *low, *high;
};
/// Where some queries see less than the whole block and more than nothing, also writes `bounds`.
TRIREME_INLINE BlockView view_block(const AttentionVisibility& visibility,
                                    const AttentionKeyBlock& block, std::int64_t sequence_row,
                                    std::int64_t query, std::int64_t count, QueryBounds bounds) {
  const std::int64_t* positions = visibility.q_position + query;
  const std::int32_t* first_keys =
      visibility.first_key == nullptr ? nullptr : visibility.first_key + sequence_row + query;
  const Extent position = extent_of(positions, count);
  Extent first = first_keys == nullptr ? Extent{0, 0} : extent_of(first_keys, count);
  // Of all queries a window leaves out at least what it does of the first, at most of the last.
  first = {first_visible(first.low, position.low, visibility.reach),
           first_visible(first.high, position.high, visibility.reach)};
  const std::int64_t last_key = block.position + block.count - 1;
  if (first.high <= block.position && position.low >= last_key) return {{0, block.count}, true};
  if (first.low > last_key || position.high < block.position) return {{0, 0}, false};
  BlockView view = {{block.count, 0}, false};
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t first_key = first_keys == nullptr ? 0 : first_keys[i];
    const KeySpan span =
        visible_keys(block, positions[i], first_visible(first_key, positions[i], visibility.reach));
    bounds.low[i] = static_cast<float>(span.low);
    bounds.high[i] = static_cast<float>(span.high);
    if (span.empty()) continue;
    view.hull.low = span.low < view.hull.low ? span.low : view.hull.low;
    view.hull.high = span.high > view.hull.high ? span.high : view.hull.high;
  }
  return view;
}

}  // namespace trireme::TRIREME_ISA
