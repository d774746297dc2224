#pragma once
// Tiles of 128 rows of a segment, which their blocks look up, and codes of such a tile across.

#include "kernels/common/segment_tiles.cuh"
#include "kernels/quantize/quantize_maxima.cuh"

namespace trireme::cuda {

/// A block's tile of 128 rows of a segment by 128 columns; `number`: of the segment's rows.
struct SegmentTile {
  int segment, begin, number;
  Tile of;

  /// As QuantizedSegments::first_block says, and those before in the segment.
  [[nodiscard]] __device__ __forceinline__ std::int64_t block() const {
    return (begin + kSide - 1) / kSide + segment + number;
  }
};

/// The rows of this block's, where tiles have so many columns: those are the caller's to set. False
/// where there is none: the grid is for as many tiles as there may be.
__device__ __forceinline__ bool find_tile(const std::int32_t* begins, std::int64_t segments,
                                          unsigned columns, SegmentTile& tile) {
  const ExpertTile rows = expert_tile<kSide>({begins, segments, 1}, 1, blockIdx.x / columns);
  if (rows.expert < 0) return false;
  tile.segment = static_cast<int>(rows.expert);
  tile.begin = static_cast<int>(rows.begin);
  tile.number = static_cast<int>(rows.tile);
  tile.of.rows = {.origin = rows.row,
                  .at = 0,
                  .block = 0,
                  .first = 0,
                  .last = static_cast<int>(min(std::int64_t{kSide}, rows.end - rows.row)),
                  .begins = rows.tile == 0};
  return true;
}

/// Of at most so many rows in so many segments, each of which may have a tile that is not full.
inline LaunchConfig config_of_segments(const Exec& exec, std::int64_t rows, std::int64_t segments,
                                       std::int64_t column_tiles, std::size_t smem_bytes,
                                       const char* name) {
  const std::int64_t tiles = rows / kSide + min(segments, rows);
  return {.grid = static_cast<unsigned>(tiles * column_tiles),
          .block = kTileThreads,
          .smem_bytes = smem_bytes,
          .stream = stream_of(exec),
          .name = name};
}

/// Codes and scales of rows across: [blocks, columns, 128] and [blocks, columns].
struct CodesOfSegments {
  std::uint8_t* codes;
  float* scales;
  std::int64_t columns;
};

/// The factors of a tile's rows or, across, of its columns, by way of memory that threads share.
template <bool kAcross>
struct SegmentFactors {
  TileMaxima<kAcross ? Scales::kOfColumns : Scales::kOfRows> maxima;
  float factors[kSide];

  /// By all threads of a block; store(i, scale) of index i of the tile's side. 1 where there is no
  /// index, so that 0 stays 0.
  template <class T, class Store>
  __device__ __forceinline__ void find(float (&own)[kOwn], const Own<T>& x, const Tile& tile,
                                       float largest, const Store& store) {
    maxima.leave(x, tile, 0);
    __syncthreads();
    const TileSide& side = kAcross ? tile.columns : tile.rows;
    const auto i = static_cast<int>(threadIdx.x);
    if (i < kSide) {
      Scale of{1, 1};
      if (i >= side.first && i < side.last) {
        of = scale_of(maxima.of_scale(i, 0), largest);
        store(side.origin + i, of.scale);
      }
      factors[i] = of.factor;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kOwn; ++k) own[k] = factors[(kAcross ? tile.column : tile.row) + k];
  }
};

/// Codes across of a tile of rows of so many columns; see store_across of quantize_tile.cuh.
__device__ __forceinline__ void store_across(std::uint8_t* codes, std::int64_t columns,
                                             CodesAcross& shared, const SegmentTile& tile,
                                             const Vector<unsigned, 2> (&words)[kOwn]) {
  QuantizedDim rows{};
  rows.width = kSide;
  rows.padded = true;
  store_across(codes + tile.block() * columns * kSide, shared, tile.of, words, rows, 0);
}

struct AcrossMemory {
  SegmentFactors<true> factors;
  CodesAcross codes;
};

/// Codes of a tile across, of blocks of their own, by all threads of a block. May follow itself
/// with the same memory.
template <class F8, class T>
__device__ __forceinline__ void quantize_across(AcrossMemory& memory, const Own<T>& x,
                                                const SegmentTile& tile,
                                                const CodesOfSegments& to) {
  const std::int64_t before = tile.block() * to.columns;
  float factors[kOwn];
  memory.factors.find(factors, x, tile.of, largest_of<F8>(), [&](std::int64_t column, float scale) {
    to.scales[before + column] = scale;
  });
  Vector<unsigned, 2> words[kOwn];
  encode<F8, true>(words, [&](int k, int j) { return __fmul_rn(x.value(k, j), factors[j]); });
  store_across(to.codes, to.columns, memory.codes, tile, words);
}

}  // namespace trireme::cuda
