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
  int i = 0;
#pragma unroll 1
  while (i + 1 < dim.part_count && tile >= dim.parts[i + 1].first_tile) ++i;
  const QuantizedDim::Part& part = dim.parts[i];
  const std::int64_t place = (tile - part.first_tile) * kSide;
  const std::int64_t before = place - part.lead;  // indices of the part before place 0
  return {
      .origin = part.begin + before,
      .at = part.at + before,
      .block = part.first_block +
               (dim.whole ? 0 : (place >> dim.tile_shift) - (part.lead >> dim.tile_shift)),
      .first = static_cast<int>(max(std::int64_t{0}, -before)),
      .last = static_cast<int>(min(std::int64_t{kSide}, part.size - before)),
      .begins = place == 0,
  };
}

struct Tile {
  TileSide rows, columns;
  int row, column;  ///< the places of a thread's first

  __device__ __forceinline__ Tile(const QuantizedDim& rows_, const QuantizedDim& columns_)
      : Tile(side_of(rows_, blockIdx.x / static_cast<unsigned>(columns_.tiles)),
             side_of(columns_, blockIdx.x % static_cast<unsigned>(columns_.tiles))) {}
  __device__ __forceinline__ Tile(const TileSide& rows_, const TileSide& columns_)
      : rows(rows_),
        columns(columns_),
        row(static_cast<int>(threadIdx.x) / kAcross * kOwn),
        column(static_cast<int>(threadIdx.x) % kAcross * kOwn) {}
  [[nodiscard]] __device__ __forceinline__ bool has_row(int k) const {
    return row + k >= rows.first && row + k < rows.last;
  }
  [[nodiscard]] __device__ __forceinline__ bool has_column(int j) const {
    return column + j >= columns.first && column + j < columns.last;
  }
  /// Bit j: has_column(j).
  [[nodiscard]] __device__ __forceinline__ unsigned own_columns() const {
    unsigned bits = 0;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) bits |= has_column(j) ? 1U << j : 0U;
    return bits;
  }
  [[nodiscard]] __device__ __forceinline__ bool has_all_rows() const {
    return row >= rows.first && row + kOwn <= rows.last;
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

/// Whether rows of `stride` bytes, the first at `start`, all begin at a multiple of `bytes`.
__device__ __forceinline__ bool rows_begin_at(const void* start, std::int64_t stride,
                                              std::uintptr_t bytes) {
  return ((reinterpret_cast<std::uintptr_t>(start) | static_cast<std::uintptr_t>(stride)) &
          (bytes - 1)) == 0;
}

/// A thread's elements as they came, so that nothing waits for the first of its loads before the
/// last is asked for: words of one f32 or two bf16.
template <class T>
struct Own {
  static constexpr int kPerWord = static_cast<int>(4 / sizeof(T)), kWords = kOwn / kPerWord;
  unsigned words[kOwn][kWords];

  [[nodiscard]] __device__ __forceinline__ float value(int k, int j) const {
    const unsigned word = words[k][j / kPerWord];
    if constexpr (kPerWord == 1) return float_of_bits(word);
    return float_of_bits(j % 2 == 0 ? word << 16 : word & 0xffff0000U);
  }
  __device__ __forceinline__ void put(int k, const Vector<T, kOwn>& row) {
    __builtin_memcpy(words[k], row.at, sizeof row.at);
  }
  /// A number that is larger where the magnitude is. Of bf16 its lower half is anything.
  [[nodiscard]] __device__ __forceinline__ unsigned order(int k, int j) const {
    return words[k][j / kPerWord] << (kPerWord == 1 || j % 2 == 1 ? 1 : 17);
  }
  /// From the largest of some: the bits of that magnitude in f32.
  static __device__ __forceinline__ std::int32_t magnitude(unsigned order) {
    return static_cast<std::int32_t>(order >> 1 & (kPerWord == 1 ? 0x7fffffffU : 0x7fff0000U));
  }
};

/// Of x, [rows, stride]; 0 where there is none.
template <class T>
__device__ __forceinline__ void load_tile(Own<T>& x, const void* from, const Tile& tile,
                                          std::int64_t stride) {
  const T* const start = static_cast<const T*>(from) + (tile.rows.origin + tile.row) * stride +
                         tile.columns.origin + tile.column;
  const auto bytes = static_cast<std::int64_t>(sizeof(T));
  if (tile.has_all_rows() && tile.has_all_columns() && rows_begin_at(start, stride * bytes, 16)) {
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
#pragma unroll
      for (int i = 0; i < Own<T>::kWords; i += 4) {
        const auto four = load<4>(reinterpret_cast<const unsigned*>(start + k * stride) + i);
#pragma unroll
        for (int word = 0; word < 4; ++word) x.words[k][i + word] = four.at[word];
      }
    }
    return;
  }
  const unsigned columns = tile.own_columns();
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    const unsigned here = tile.has_row(k) ? columns : 0;
#pragma unroll
    for (int i = 0; i < Own<T>::kWords; ++i) {
      T in_word[Own<T>::kPerWord];
#pragma unroll
      for (int e = 0; e < Own<T>::kPerWord; ++e) {
        const int j = i * Own<T>::kPerWord + e;
        in_word[e] = (here >> j & 1) != 0 ? start[k * stride + j] : from_float<T>(0.0F);
      }
      __builtin_memcpy(&x.words[k][i], in_word, 4);
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
  const std::uint64_t all = std::uint64_t{codes.at[1]} << 32 | codes.at[0];
#pragma unroll 1
  for (int i = max(first, 0); i < min(last, kOwn); ++i)
    to[i] = static_cast<std::uint8_t>(all >> i * 8);
}

/// Codes of a tile, [column][row / 8]; unit i of column c stands at i ^ (c / 8), so that neither
/// side meets a bank twice.
struct CodesAcross {
  Vector<unsigned, 2> units[kSide][kAcross];
};

/// A thread's codes, eight[k] those of row k, into rows of codes whose columns are those of the
/// tile, of `dim`.
__device__ __forceinline__ void store_along(std::uint8_t* codes, const Tile& tile,
                                            const Vector<unsigned, 2> (&eight)[kOwn],
                                            const QuantizedDim& dim) {
  std::uint8_t* const to =
      codes + (tile.rows.origin + tile.row) * dim.width + tile.columns.at + tile.column;
  if (tile.has_all_rows() && (dim.padded || tile.has_all_columns()) &&
      rows_begin_at(to, dim.width, 8)) {
#pragma unroll
    for (int k = 0; k < kOwn; ++k) store(reinterpret_cast<unsigned*>(to + k * dim.width), eight[k]);
    return;
  }
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    if (!tile.has_row(k)) continue;
    store_codes(to + k * dim.width, eight[k], dim.padded ? 0 : tile.columns.first - tile.column,
                dim.padded ? kOwn : tile.columns.last - tile.column);
  }
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
  const int column = static_cast<int>(threadIdx.x) / kAcross;  // and every kAcross-th behind
  std::uint8_t* const to = codes + (tile.columns.origin + column) * dim.width + at + mine * kOwn;
  const int first = dim.padded ? 0 : tile.rows.first - mine * kOwn,
            last = dim.padded ? kOwn : tile.rows.last - mine * kOwn;
  const auto place = [&](int i) -> const Vector<unsigned, 2>& {
    return shared.units[column + i * kAcross][mine ^ ((column + i * kAcross) / kOwn)];
  };
  if (tile.columns.first == 0 && tile.columns.last == kSide && first <= 0 && last >= kOwn &&
      rows_begin_at(to, dim.width, 8)) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      store(reinterpret_cast<unsigned*>(to + i * kAcross * dim.width), place(i));
    return;
  }
#pragma unroll 1
  for (int i = 0; i < kOwn; ++i) {
    const int at_column = column + i * kAcross;
    if (at_column < tile.columns.first || at_column >= tile.columns.last) continue;
    store_codes(to + i * kAcross * dim.width, place(i), first, last);
  }
}

}  // namespace trireme::cuda
