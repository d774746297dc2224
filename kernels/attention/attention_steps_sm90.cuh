#pragma once
// The order in which the backward kernel for Hopper goes through queries, and its blocks begin.

#include "kernels/attention/attention_backward.cuh"

namespace trireme::cuda::attention {

/// The last queries first, each tile for all heads that share the keys. All blocks of a key head
/// whose keys a tile sees come to it after as many steps then, whatever queries before it they see:
/// where they take turns (attention_turns_sm90.cuh), a block follows the one of the keys before its
/// own at a distance that does not grow. By whole warps.
template <int kKeys, int kQueries>
class BackwardSteps : public BackwardWork<RowsOf::kKeys, kKeys, kQueries> {
 public:
  using Work = BackwardWork<RowsOf::kKeys, kKeys, kQueries>;

  __device__ __forceinline__ BackwardSteps(const AttentionGpuBackward& args, int tile, int group,
                                           int query_tiles)
      : Work(args, tile, group), first_head_(this->other_head_), base_(query_tiles) {
    this->other_head_ = this->last_head_;
  }

  /// The next tile that the block's keys may be seen by; one of no tokens after the last.
  [[nodiscard]] __device__ __forceinline__ BackwardStep next() {
    if (this->other_head_ < this->last_head_) {
      ++this->other_head_;
      return {tile_, this->other_head_, number_};
    }
    while (seen_ == 0) {
      if (base_ <= 0) return {};
      base_ -= 32;
      const int number = base_ + static_cast<int>(threadIdx.x % 32);
      const Tile tile =
          number < 0 ? Tile{0, 0, 0} : tile_at(this->args_.q_ranges, number, kQueries);
      seen_ = __ballot_sync(
          kAllLanes, tile.count > 0 && this->bounds_of(tile, number).meets(this->own) ? 1 : 0);
    }
    const int lane = 31 - __clz(static_cast<int>(seen_));
    seen_ ^= 1U << lane;
    number_ = base_ + lane;
    tile_ = tile_at(this->args_.q_ranges, number_, kQueries);
    this->other_head_ = first_head_;
    return {tile_, first_head_, number_};
  }

 private:
  int first_head_, base_, number_ = 0;
  unsigned seen_ = 0;
  Tile tile_ = {};
};

/// Blocks begin by tiles of keys, the first ones first: causal, those have the most queries, and
/// what begins last is short. So that this holds for all heads together, a section of them has
/// several blocks for each multiprocessor, even where the cache does not hold all that they read:
/// those of a head that run at one time read the same.
inline BlockOrder backward_block_order(std::int64_t tiles, std::int64_t groups,
                                       std::int64_t group_bytes) {
  constexpr std::int64_t kBlocks = 3 * 132;
  BlockOrder order = block_order(tiles, groups, 1, group_bytes, false);
  const std::int64_t most = max(tiles * groups / kBlocks, std::int64_t{1}),
                     wanted = (groups + order.section - 1) / order.section,
                     sections = min(most, wanted);
  order.section = static_cast<int>((groups + sections - 1) / sections);
  return order;
}

}  // namespace trireme::cuda::attention
