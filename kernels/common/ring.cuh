#pragma once
// The ring of stages in shared memory through which a producer hands tiles to consumers: of each
// stage two mbarriers, `full` and `empty`. A producer waits for `empty` with the other parity, so
// that it finds a fresh ring free.

#include "kernels/common/cuda.cuh"
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

/// Of the calling thread; the compiler learns that a warp has one.
__device__ __forceinline__ int warpgroup() {
  return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 128, 0);
}

}  // namespace trireme::cuda
