#pragma once
// Which rows a tile has of a table of segments, looked up in the GPU's memory: no host knows it.

#include "kernels/common/reduce.cuh"

namespace trireme::cuda {

/// Rows of experts, each of so many sources: segment s has begins[s] <= r < begins[s + 1].
struct SegmentTable {
  const std::int32_t* begins;
  std::int64_t experts, sources;
};

/// An expert's rows, and one of its tiles by number; expert -1: none. Of experts with one column of
/// tiles also where the tile's rows begin (worked out by a caller, that takes registers).
struct ExpertTile {
  std::int64_t expert, begin, end, tile, row;
};

/// Tile `index` of those of the experts one after the other, each with `columns` for kHeight of its
/// rows, whole or begun. All lanes of a warp look for it, each at an expert of its own at a time.
template <int kHeight>
__device__ __forceinline__ ExpertTile expert_tile(const SegmentTable& table, std::int64_t columns,
                                                  std::int64_t index) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  std::int64_t before = 0;
  for (std::int64_t first = 0; first < table.experts; first += 32) {
    const std::int64_t expert = first + lane;
    const bool exists = expert < table.experts;
    const int begin = exists ? table.begins[expert * table.sources] : 0;
    const int end = exists ? table.begins[(expert + 1) * table.sources] : 0;
    const int tiles = (end - begin + kHeight - 1) / kHeight * static_cast<int>(columns);
    int up_to = tiles;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, up_to, step);
      if (lane >= step) up_to += other;
    }
    const unsigned behind = __ballot_sync(kAllLanes, index < before + up_to);
    if (behind != 0) {
      const int found = __ffs(static_cast<int>(behind)) - 1;
      const std::int64_t tile = index - before - __shfl_sync(kAllLanes, up_to - tiles, found);
      const std::int64_t from = __shfl_sync(kAllLanes, begin, found);
      return {first + found, from, __shfl_sync(kAllLanes, end, found), tile, from + tile * kHeight};
    }
    before += __shfl_sync(kAllLanes, up_to, 31);
  }
  return {-1, 0, 0, 0, 0};
}

}  // namespace trireme::cuda
