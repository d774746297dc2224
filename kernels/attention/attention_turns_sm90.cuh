#pragma once
// The order in which blocks of the backward kernel for Hopper add to dq, where its bits have to be
// equal.

#include "kernels/attention/attention_backward.cuh"
#include "kernels/common/ptx.cuh"

namespace trireme::cuda::attention {

/// Where blocks add to dq in one order: those of the first keys come first. They have begun before
/// the others, too, so that who waits for them does not keep them from running.
template <class B>
class BlockTurns {
 public:
  /// `key_tile`: the block's, in shared memory.
  __device__ __forceinline__ BlockTurns(const AttentionGpuBackward& args, const int& key_tile,
                                        int query_tiles)
      : args_(args), key_tile_(key_tile), query_tiles_(query_tiles) {}

  /// Finds the count of a tile of queries, and how many blocks add to it before. By whole warps.
  __device__ __forceinline__ void find(const typename B::Work& work, const BackwardStep& step) {
    if (args_.turns == nullptr) return;
    const std::int64_t head = work.sequence() * args_.shape.heads + step.head;
    count_ = args_.turns + 1 + head * query_tiles_ + step.number;
    before_ = 0;
    const QueryBounds bounds = work.bounds_of(step.tile, step.number);
    for (int first = 0; first < key_tile_; first += 32) {
      const int number = first + static_cast<int>(threadIdx.x % 32);
      const Tile keys = tile_at(args_.kv_ranges, number, B::kKeys);
      before_ += __popc(__ballot_sync(kAllLanes, number < key_tile_ && bounds.meets(keys) ? 1 : 0));
    }
  }
  /// One thread.
  __device__ __forceinline__ void begin() const {
    if (args_.turns == nullptr) return;
    ptx::begin_turn(count_, before_);
    ptx::fence_proxy_async_global();
  }
  /// The same: what it added is there.
  __device__ __forceinline__ void end() const {
    if (args_.turns == nullptr) return;
    ptx::bulk_wait<0>();
    ptx::fence_proxy_async_global();
    ptx::end_turn(count_);
  }

 private:
  const AttentionGpuBackward& args_;
  const int& key_tile_;
  int query_tiles_, before_ = 0;
  int* count_ = nullptr;
};

}  // namespace trireme::cuda::attention
