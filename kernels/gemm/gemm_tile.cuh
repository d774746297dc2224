#pragma once
// What the main loops share: which tile a block computes, and how sums reach an epilogue.

#include "kernels/gemm/gemm_epilogue.cuh"

namespace trireme::cuda {

/// op(a) [m, k] times op(b) [k, n]. wide_a: rows of a begin at multiples of 16 bytes, and so on.
template <class T>
struct Product {
  const T *a, *b;
  std::int64_t m, n, k;
  bool wide_a, wide_b;
};

struct TileAt {
  std::int64_t row, column;  ///< in tiles
};

/// Tiles in groups of some rows of tiles, down a group's columns: blocks that run at the same time
/// read few rows of a and few columns of b, which the L2 cache then holds.
__device__ __forceinline__ TileAt tile_at(std::int64_t index, std::int64_t tile_rows,
                                          std::int64_t tile_columns) {
  constexpr std::int64_t kGroup = 8;
  const std::int64_t group = index / (kGroup * tile_columns), first = group * kGroup;
  const std::int64_t rows = min(kGroup, tile_rows - first);
  const std::int64_t within = index - first * tile_columns;
  return {first + within % rows, within / rows};
}

/// Where column `n` of a tile stands in op(b): in order, or for two products at once `kRun` columns
/// of the first, the same of the second, and so on; -1: nowhere.
template <bool kDual, int kRun, int kTileN>
__device__ __forceinline__ std::int64_t source_column(std::int64_t tile_column, int n,
                                                      std::int64_t columns) {
  if constexpr (kDual) {
    const std::int64_t half = columns / 2;
    const int run = n / kRun;
    const std::int64_t column =
        tile_column * (kTileN / 2) + static_cast<std::int64_t>(run / 2) * kRun + n % kRun;
    return column < half ? column + (run % 2) * half : -1;
  } else {
    const std::int64_t column = tile_column * kTileN + n;
    return column < columns ? column : -1;
  }
}

}  // namespace trireme::cuda
