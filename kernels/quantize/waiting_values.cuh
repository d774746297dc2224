#pragma once

#include "kernels/quantize/quantize_tile.cuh"

namespace trireme::cuda {

/// What waits for its turn is a thread's own, and takes no registers meanwhile.
struct WaitingValues {
  unsigned words[kOwn * Own<bf16>::kWords][kTileThreads];

  __device__ __forceinline__ void put(int k, const Vector<bf16, kOwn>& row) {
    unsigned of_row[Own<bf16>::kWords];
    __builtin_memcpy(of_row, row.at, sizeof row.at);
#pragma unroll
    for (int w = 0; w < Own<bf16>::kWords; ++w)
      words[k * Own<bf16>::kWords + w][threadIdx.x] = of_row[w];
  }
  __device__ __forceinline__ void take(Own<bf16>& x) const {
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
#pragma unroll
      for (int w = 0; w < Own<bf16>::kWords; ++w)
        x.words[k][w] = words[k * Own<bf16>::kWords + w][threadIdx.x];
    }
  }
};

}  // namespace trireme::cuda
