#pragma once
// The ring of stages in shared memory through which a producer hands tiles to consumers: of each
// stage two mbarriers, `full` and `empty`. A producer waits for `empty` with the other parity, so
// that it finds a fresh ring free.

#include "kernels/common/ptx.cuh"
#include "kernels/common/reduce.cuh"

namespace trireme::cuda {

/// Position in the ring; the parity flips each time round.
template <int kStages>
struct Ring {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// Threads of a warpgroup.
inline constexpr int kWarpgroup = 128;

/// Of the calling thread; the compiler learns that a warp has one.
__device__ __forceinline__ int warpgroup() {
  return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
}

/// Consuming warpgroups issue their products in turn, so that what one does with its own runs under
/// those of another. The last one opens the first turn; after the last turn the first one closes.
template <int kConsumers>
struct Turns {
  static constexpr int kFirst = 1 + kConsumers;  ///< named barriers from here on
  int consumer;

  __device__ __forceinline__ void open() const {
    if (consumer == kConsumers - 1) ptx::barrier_arrive(kFirst, 2 * kWarpgroup);
  }
  __device__ __forceinline__ void begin() const {
    ptx::barrier_sync(kFirst + consumer, 2 * kWarpgroup);
  }
  __device__ __forceinline__ void end() const {
    const int next = consumer == kConsumers - 1 ? 0 : consumer + 1;
    ptx::barrier_arrive(kFirst + next, 2 * kWarpgroup);
  }
  __device__ __forceinline__ void close() const {
    if (consumer == 0) begin();
  }
};

}  // namespace trireme::cuda
