#pragma once
// The rows that a block of the backward kernels owns and the tiles that it streams past them.

#include "kernels/attention/attention_mask.cuh"

namespace trireme::cuda::attention {

/// Which side a block owns; it streams the other.
enum class RowsOf : std::uint8_t { kQueries, kKeys };

/// A streamed tile and its head: the key head for keys; for queries its query heads in turn.
struct BackwardStep {
  Tile tile;
  int head, number;
};

template <RowsOf kRowsOf, int kRows, int kColumns>
class BackwardWork {
 public:
  static constexpr bool kKeyRows = kRowsOf == RowsOf::kKeys;

  __device__ __forceinline__ BackwardWork(const AttentionGpuBackward& args, int tile, int group)
      : args_(args), scan_(kKeyRows ? args.q_ranges : args.kv_ranges, kColumns) {
    const int heads = static_cast<int>(args.shape.heads),
              kv_heads = static_cast<int>(args.shape.kv_heads), sharing = heads / kv_heads,
              own_heads = kKeyRows ? kv_heads : heads;
    head = group % own_heads;
    sequence_ = group / own_heads;
    q_row = sequence_ * args.shape.q_tokens;
    kv_row = sequence_ * args.shape.kv_tokens;
    own = tile_at(kKeyRows ? args.kv_ranges : args.q_ranges, tile, kRows);
    other_head_ = kKeyRows ? head * sharing : head / sharing;
    last_head_ = kKeyRows ? other_head_ + sharing - 1 : other_head_;
    if (args.first_key != nullptr) first_key = args.first_key + q_row + (kKeyRows ? 0 : own.index);
    if constexpr (!kKeyRows) own_bounds_ = query_bounds(own, 0, kRows, first_key, args.reach);
  }

  /// Bounds of a streamed tile of queries.
  [[nodiscard]] __device__ __forceinline__ QueryBounds bounds_of(const Tile& queries,
                                                                 int number) const {
    QueryBounds bounds =
        bounds_of_positions(queries.position, queries.last_position(), args_.reach);
    if (args_.tile_first_key != nullptr) {
      const std::int32_t* keys = args_.tile_first_key + sequence_ * args_.tile_stride + 2 * number;
      bounds.first_key_min = keys[0];
      bounds.first_key_max = keys[1];
    }
    return bounds;
  }

  /// The next tile that the block's rows may see; one of no tokens after the last.
  [[nodiscard]] __device__ __forceinline__ BackwardStep next() {
    for (;;) {
      const Tile tile = scan_.next([&](const Tile& other, int number) {
        if constexpr (kKeyRows) {
          return bounds_of(other, number).meets(own);
        } else {
          return own_bounds_.meets(other);
        }
      });
      if (tile.count > 0) return {tile, other_head_, scan_.number()};
      if (other_head_ == last_head_) return {};
      ++other_head_;
      scan_.restart();
    }
  }

  [[nodiscard]] __device__ __forceinline__ std::int64_t sequence() const { return sequence_; }

  Tile own;
  int head;                    ///< of the own rows
  std::int64_t q_row, kv_row;  ///< the sequence's first
  /// Null without documents. Of the first own row, where these are queries, else of the sequence.
  const std::int32_t* first_key = nullptr;

 protected:
  const AttentionGpuBackward& args_;
  int other_head_, last_head_;

 private:
  TileScan scan_;
  std::int64_t sequence_;
  QueryBounds own_bounds_ = {};
};

}  // namespace trireme::cuda::attention
