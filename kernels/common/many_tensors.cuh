#pragma once
// One launch over many tensors: a table in device memory with each one's first block.

#include "kernels/common/reduce.cuh"

namespace trireme::cuda {

/// The last of `count` >= 1 entries whose `first_block` is not above `block`; first_block ascends
/// from 0, and a tensor without blocks has that of the next one. All lanes of a warp call: they
/// look at 32 entries at once, so that a thousand tensors take two loads one after another.
template <class Entry>
__device__ __forceinline__ std::int64_t tensor_of_block(const Entry* entries, std::int64_t count,
                                                        std::int64_t block) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  std::int64_t first = 0, size = count;  // it is one of these
  while (size > 1) {
    const std::int64_t step = (size + 31) / 32;
    const std::int64_t probe = lane * step;
    const bool begun = probe < size && entries[first + probe].first_block <= block;
    const unsigned all = __ballot_sync(kAllLanes, begun);  // ones, then zeros; lane 0 has a one
    const std::int64_t last = (31 - __clz(static_cast<int>(all))) * step;
    first += last;
    size = min(step, size - last);
  }
  return first;
}

/// This block's kElements elements of a tensor (`first_block`, `count`), or its last ones:
/// `of_many(i)` for kCount from i on where the tensor is `aligned` for that, and `of_one(i)` for
/// what is left. Of blocks of kThreads.
template <int kThreads, int kCount, std::int64_t kElements, class Tensor, class OfMany, class OfOne>
__device__ __forceinline__ void for_block_of(const Tensor& tensor, bool aligned,
                                             const OfMany& of_many, const OfOne& of_one) {
  static_assert(kElements % (kThreads * kCount) == 0);
  const std::int64_t begin = (blockIdx.x - tensor.first_block) * kElements;
  const std::int64_t end = min(begin + kElements, tensor.count);
  std::int64_t single = begin;
  if (aligned) {
    single = end / kCount * kCount;
#pragma unroll 1
    for (std::int64_t i = begin + threadIdx.x * kCount; i < single; i += kThreads * kCount)
      of_many(i);
  }
#pragma unroll 1
  for (std::int64_t i = single + threadIdx.x; i < end; i += kThreads) of_one(i);
}

}  // namespace trireme::cuda
