#pragma once
// Which tiles of queries and keys meet, and in which order blocks take them: all that depends on
// positions, documents and windows. A tile never spans two ranges: positions in it count up with
// the rows.

#include "kernels/attention/attention_gpu_table.h"
#include "kernels/common/cuda.cuh"
#include "kernels/common/reduce.cuh"

namespace trireme::cuda::attention {

/// Tokens [index, index + count) of a sequence, at position, position + 1, ...; count 0: no tile.
struct Tile {
  int index, count, position;
  [[nodiscard]] __host__ __device__ int last_position() const { return position + count - 1; }
};

/// Tile `number` of those that the ranges are divided into; one of no tokens after the last.
__device__ __forceinline__ Tile tile_at(const AttentionRanges& ranges, int number, int size) {
  const AttentionRange* range = ranges.table != nullptr ? ranges.table : ranges.few;
  for (int i = 0; i < ranges.count; ++i, ++range) {
    const int tiles = (range->count + size - 1) / size;
    if (number < tiles) {
      const int offset = number * size;
      return {range->index + offset, min(size, range->count - offset), range->first + offset};
    }
    number -= tiles;
  }
  return {0, 0, 0};
}

/// The tiles that `visible(tile, number)` holds for, ascending. A warp looks at 32 tiles at once,
/// so skipping documents and the future costs next to nothing. Called by whole warps.
class TileScan {
 public:
  /// The state of a scan; zeros to begin with.
  struct State {
    int base;
    unsigned seen;
  };
  __device__ TileScan(const AttentionRanges& ranges, int size, State state = {0, 0})
      : ranges_(ranges), size_(size), base_(state.base), seen_(state.seen) {}
  [[nodiscard]] __device__ State state() const { return {base_, seen_}; }

  template <class Visible>
  __device__ __forceinline__ Tile next(Visible visible) {
    while (seen_ == 0) {
      if (tile_at(ranges_, base_, size_).count == 0) return {0, 0, 0};
      const int number = base_ + static_cast<int>(threadIdx.x % 32);
      const Tile tile = tile_at(ranges_, number, size_);
      seen_ = __ballot_sync(kAllLanes, tile.count > 0 && visible(tile, number) ? 1 : 0);
      base_ += 32;
    }
    number_ = base_ - 33 + __ffs(static_cast<int>(seen_));
    seen_ &= seen_ - 1;
    return tile_at(ranges_, number_, size_);
  }
  __device__ void restart() { base_ = 0; }
  /// Of the tile that next() gave.
  [[nodiscard]] __device__ int number() const { return number_; }

 private:
  const AttentionRanges& ranges_;
  int size_, base_, number_ = 0;
  unsigned seen_;
};

/// The positions of some rows of queries, and the lowest and highest first key among them.
struct QueryBounds {
  int first, last;  ///< positions; last < first: no rows
  int first_key_min, first_key_max;

  /// Some row sees some key of the tile (or may: of the rows only the bounds are known).
  [[nodiscard]] __device__ bool meets(const Tile& keys) const {
    return first <= last && keys.position <= last && keys.last_position() >= first_key_min;
  }
  /// Every row sees every key of the tile.
  [[nodiscard]] __device__ bool covers(const Tile& keys) const {
    return keys.last_position() <= first && keys.position >= first_key_max;
  }
};

__device__ __forceinline__ int warp_min(int value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value = min(value, __shfl_xor_sync(kAllLanes, value, offset));
  return value;
}

/// What hides keys from rows besides what comes later: first keys of documents, of the first row or
/// null, and how many positions behind its own a query sees.
struct KeyLimits {
  const std::int32_t* first_key;
  int reach;
};

/// The first key that a query sees, whose document begins at `first`.
__device__ __forceinline__ int first_visible(int first, int position, int reach) {
  return max(first, position - reach);
}

/// Bounds of positions first to last without documents.
__device__ __forceinline__ QueryBounds bounds_of_positions(int first, int last, int reach) {
  return {first, last, first_visible(0, first, reach), first_visible(0, last, reach)};
}

/// Bounds of rows [begin, begin + count) of a tile of queries, those that exist; all lanes of a
/// warp call. first_key: of the tile's first row, or null.
__device__ __forceinline__ QueryBounds query_bounds(const Tile& queries, int begin, int count,
                                                    const std::int32_t* first_key, int reach) {
  const int end = min(begin + count, queries.count);
  QueryBounds bounds =
      bounds_of_positions(queries.position + begin, queries.position + end - 1, reach);
  if (first_key != nullptr) {
    int lowest = 0x7fffffff, negated = 0x7fffffff;
    for (int row = begin + static_cast<int>(threadIdx.x % 32); row < end; row += 32) {
      const int key = first_visible(first_key[row], queries.position + row, reach);
      lowest = min(lowest, key);
      negated = min(negated, -key);
    }
    bounds.first_key_min = warp_min(lowest);
    bounds.first_key_max = -warp_min(negated);
  }
  return bounds;
}

// ---- the order of blocks ----

/// Blocks work on (tile, group) pairs; a group is a head of a sequence. Those that run together
/// should read the same few groups, whose rows then stay in the L2 cache, and the longest tiles
/// should come first. So blocks go section by section of groups, in each by the tiles' length.
struct BlockOrder {
  int tiles, groups, section;
  bool last_tile_first;

  struct Place {
    int tile, group;
  };
  [[nodiscard]] __host__ __device__ unsigned blocks() const {
    return static_cast<unsigned>(tiles) * static_cast<unsigned>(groups);
  }
  [[nodiscard]] __device__ Place place(unsigned block) const {
    const unsigned per_section = static_cast<unsigned>(section) * static_cast<unsigned>(tiles);
    const int begin = static_cast<int>(block / per_section) * section;
    const unsigned size = static_cast<unsigned>(min(section, groups - begin)),
                   rest = block % per_section;
    const int tile = static_cast<int>(rest / size);
    return {last_tile_first ? tiles - 1 - tile : tile, begin + static_cast<int>(rest % size)};
  }
};

/// How many tiles the ranges fall into. On the host.
inline int tile_count(const AttentionRanges& ranges, int size) {
  int tiles = 0;
  for (int i = 0; i < ranges.count; ++i) tiles += (ranges.on_host[i].count + size - 1) / size;
  return tiles;
}

/// group_bytes: what a block reads of its group. Sections end where heads do that share their rows.
inline BlockOrder block_order(std::int64_t tiles, std::int64_t groups, std::int64_t sharing,
                              std::int64_t group_bytes, bool last_tile_first) {
  constexpr std::int64_t kCacheBytes = std::int64_t{24} << 20;  // of 40 (A100) or 50 MB (H100)
  std::int64_t section = kCacheBytes / (group_bytes + 1) * sharing;
  if (section < sharing) section = sharing;
  if (section > groups) section = groups;
  return {static_cast<int>(tiles), static_cast<int>(groups), static_cast<int>(section),
          last_tile_first};
}

}  // namespace trireme::cuda::attention
