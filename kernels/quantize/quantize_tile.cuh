#pragma once
// What the kernels of quantize share: a block of threads has a tile of 128 x 128 of the padded
// order of both dims, in which blocks that share a scale lie whole; a thread has 8 x 8 of it.

#include "kernels/common/float8.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/quantize/quantize_table.h"

namespace trireme::cuda {

constexpr int kSide = 128;
constexpr int kOwn = 8;  ///< rows and columns of a thread
constexpr int kAcross = kSide / kOwn;
constexpr int kTileThreads = kAcross * kAcross;

/// One side of a tile: places [first, last) of its 128 are indices of the tensor.
struct TileSide {
  std::int64_t origin;  ///< the index at place 0, were there one
  std::int64_t at;      ///< that place in a row of codes
  std::int64_t block;   ///< and its block
  int first, last;
  bool begins;  ///< the part's first tile
};

__device__ __forceinline__ TileSide side_of(const QuantizedDim& dim, std::int64_t tile) {
  TileSide side{};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const QuantizedDim::Part& part = dim.parts[i];
    const std::int64_t tiles = i < dim.part_count ? (part.lead + part.size + kSide - 1) / kSide : 0;
    if (tile >= 0 && tile < tiles) {
      const std::int64_t before = tile * kSide - part.lead;  // indices of the part before place 0
      side.origin = part.begin + before;
      side.at = part.at + before;
      side.block =
          part.first_block +
          (dim.whole ? 0 : (tile * kSide >> dim.tile_shift) - (part.lead >> dim.tile_shift));
      side.first = static_cast<int>(max(std::int64_t{0}, -before));
      side.last = static_cast<int>(min(std::int64_t{kSide}, part.size - before));
      side.begins = tile == 0;
    }
    tile -= tiles;
  }
  return side;
}

struct Tile {
  TileSide rows, columns;
  int row, column;  ///< the places of a thread's first

  __device__ __forceinline__ Tile(const QuantizedDim& rows_, const QuantizedDim& columns_)
      : rows(side_of(rows_, blockIdx.x / columns_.tiles)),
        columns(side_of(columns_, blockIdx.x % columns_.tiles)),
        row(static_cast<int>(threadIdx.x) / kAcross * kOwn),
        column(static_cast<int>(threadIdx.x) % kAcross * kOwn) {}
  [[nodiscard]] __device__ __forceinline__ bool has_row(int k) const {
    return row + k >= rows.first && row + k < rows.last;
  }
  [[nodiscard]] __device__ __forceinline__ bool has_column(int j) const {
    return column + j >= columns.first && column + j < columns.last;
  }
  [[nodiscard]] __device__ __forceinline__ bool has_all_columns() const {
    return column >= columns.first && column + kOwn <= columns.last;
  }
};

inline LaunchConfig config_of_tiles(const Exec& exec, const QuantizedDim& rows,
                                    const QuantizedDim& columns, std::size_t smem_bytes,
                                    const char* name) {
  return {.grid = static_cast<unsigned>(rows.tiles * columns.tiles),
          .block = kTileThreads,
          .smem_bytes = smem_bytes,
          .stream = stream_of(exec),
          .name = name};
}

/// A thread's elements of x, [rows, stride]; 0 where there is none.
template <class T>
__device__ __forceinline__ void load_tile(T (&x)[kOwn][kOwn], const void* from, const Tile& tile,
                                          std::int64_t stride) {
  constexpr int kVector = kWide<T> < kOwn ? kWide<T> : kOwn;
  const T* const start = static_cast<const T*>(from) + (tile.rows.origin + tile.row) * stride +
                         tile.columns.origin + tile.column;
  const bool aligned = (reinterpret_cast<std::uintptr_t>(start) & 15) == 0 &&
                       (stride * static_cast<std::int64_t>(sizeof(T)) & 15) == 0;
  const bool whole = aligned && tile.has_all_columns();
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    const T* const row = start + k * stride;
    if (whole && tile.has_row(k)) {
#pragma unroll
      for (int j = 0; j < kOwn; j += kVector) {
        const Vector<T, kVector> v = load<kVector>(row + j);
#pragma unroll
        for (int i = 0; i < kVector; ++i) x[k][j + i] = v.at[i];
      }
    } else {
#pragma unroll
      for (int j = 0; j < kOwn; ++j)
        x[k][j] = tile.has_row(k) && tile.has_column(j) ? row[j] : from_float<T>(0.0F);
    }
  }
}

/// Eight codes that follow each other; of those that are not at [first, last) none is touched.
__device__ __forceinline__ void store_codes(std::uint8_t* to, const Vector<unsigned, 2>& codes,
                                            int first, int last) {
  if (first <= 0 && last >= kOwn && (reinterpret_cast<std::uintptr_t>(to) & 7) == 0) {
    store(reinterpret_cast<unsigned*>(to), codes);
    return;
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (i >= first && i < last) to[i] = static_cast<std::uint8_t>(codes.at[i / 4] >> i % 4 * 8);
  }
}

/// Codes of a tile, [column][row / 8]; unit i of column c stands at i ^ (c / 8), so that neither
/// side meets a bank twice.
struct CodesAcross {
  Vector<unsigned, 2> units[kSide][kAcross];
};

/// Row `row` of codes whose columns are those of the tile, of `dim`.
__device__ __forceinline__ void store_along(std::uint8_t* codes, const Tile& tile, int k,
                                            const Vector<unsigned, 2>& eight,
                                            const QuantizedDim& dim) {
  if (!tile.has_row(k)) return;
  std::uint8_t* const to =
      codes + (tile.rows.origin + tile.row + k) * dim.width + tile.columns.at + tile.column;
  store_codes(to, eight, dim.padded ? 0 : tile.columns.first - tile.column,
              dim.padded ? kOwn : tile.columns.last - tile.column);
}

/// Rows of codes that are the tile's columns; `dim` are its rows, which lie at `at` in each. By all
/// threads of a block; words[j] are codes of column j of the thread, its rows ascending.
__device__ __forceinline__ void store_across(std::uint8_t* codes, CodesAcross& shared,
                                             const Tile& tile,
                                             const Vector<unsigned, 2> (&words)[kOwn],
                                             const QuantizedDim& dim, std::int64_t at) {
  const int unit = tile.row / kOwn, group = tile.column / kOwn;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) shared.units[tile.column + j][unit ^ group] = words[j];
  __syncthreads();
  const int mine = static_cast<int>(threadIdx.x) % kAcross;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int column = static_cast<int>(threadIdx.x) / kAcross + i * kAcross;
    if (column < tile.columns.first || column >= tile.columns.last) continue;
    std::uint8_t* const to = codes + (tile.columns.origin + column) * dim.width + at + mine * kOwn;
    store_codes(to, shared.units[column][mine ^ (column / kOwn)],
                dim.padded ? 0 : tile.rows.first - mine * kOwn,
                dim.padded ? kOwn : tile.rows.last - mine * kOwn);
  }
}

}  // namespace trireme::cuda
