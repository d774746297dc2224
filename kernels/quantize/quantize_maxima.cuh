#pragma once
// The largest magnitudes of a tile's scales, the scales made of them, and codes.

#include "kernels/common/reduce.cuh"
#include "kernels/quantize/quantize_tile.cuh"

namespace trireme::cuda {

/// Blocks of a multiprocessor, at least: some compute while 32 KiB of bf16, or 64 of f32, are under
/// way for each of the others. A fourth would spill.
template <class T>
inline constexpr int kTileBlocks = sizeof(T) == 2 ? 3 : 2;

/// The scales of a tile: one for some rows, or one for some columns, at most 128; or any. kNone: of
/// codes that are not asked for.
enum class Scales : std::uint8_t { kNone, kOfRows, kOfColumns, kAny };

inline Scales scales_of_tiles(const QuantizedDim& rows, const QuantizedDim& columns) {
  if (1 << columns.tile_shift == kSide) return Scales::kOfRows;
  return 1 << rows.tile_shift == kSide ? Scales::kOfColumns : Scales::kAny;
}

struct Scale {
  float factor, scale;
};
__device__ __forceinline__ Scale scale_of(std::int32_t amax, float largest) {
  constexpr std::int32_t kInfinity = 0x7f800000;
  if (amax >= kInfinity) return {1, float_of_bits(0x7fc00000)};
  if (amax == 0) return {1, 1};
  const float ratio = __fdiv_rn(largest, float_of_bits(static_cast<std::uint32_t>(amax)));
  const float factor = min(ratio, 3.40282347e38F);
  return {factor, __fdiv_rn(1, factor)};
}

/// Where the scale `i` of a tile stands among all; -1: of no index.
template <Scales kScales>
__device__ __forceinline__ std::int64_t place_of(int i, const Tile& tile, const QuantizedDim& rows,
                                                 const QuantizedDim& columns, bool across) {
  const bool of_rows = kScales == Scales::kOfRows;
  const TileSide& side = of_rows ? tile.rows : tile.columns;
  const int shift = of_rows ? rows.tile_shift : columns.tile_shift;
  if (i << shift >= side.last || (i + 1) << shift <= side.first) return -1;
  const std::int64_t row = tile.rows.block + (of_rows ? i : 0),
                     column = tile.columns.block + (of_rows ? 0 : i);
  return across ? column * rows.blocks + row : row * columns.blocks + column;
}

/// What threads have found, between them: each place is written by one.
template <Scales kScales>
struct TileMaxima;

/// Of each row or, where eight share a scale, of a thread's rows.
template <>
struct TileMaxima<Scales::kOfRows> {
  Vector<std::int32_t, 4> most[kSide / 4];

  template <class T>
  __device__ __forceinline__ void leave(const Own<T>& x, const Tile& tile, int shift) {
    unsigned of_row[kOwn];
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      of_row[k] = x.order(k, 0);
#pragma unroll
      for (int j = 1; j < kOwn; ++j) of_row[k] = max(of_row[k], x.order(k, j));
    }
    if (1 << shift >= kOwn) {
#pragma unroll
      for (int k = 1; k < kOwn; ++k) of_row[0] = max(of_row[0], of_row[k]);
      const std::int32_t most_of_rows = over_half_warp<T>(of_row[0]);
      if (tile.column == 0) reinterpret_cast<std::int32_t*>(most)[tile.row / kOwn] = most_of_rows;
      return;
    }
    Vector<std::int32_t, 4> rows[kOwn / 4];
#pragma unroll
    for (int k = 0; k < kOwn; ++k) rows[k / 4].at[k % 4] = over_half_warp<T>(of_row[k]);
    if (tile.column != 0) return;
#pragma unroll
    for (int i = 0; i < kOwn / 4; ++i) most[tile.row / 4 + i] = rows[i];
  }
  /// Of the tile's scale i, behind a barrier.
  [[nodiscard]] __device__ __forceinline__ std::int32_t of_scale(int i, int shift) const {
    const int count = 1 << shift >= kOwn ? (1 << shift) / kOwn : 1 << shift;
    const auto* const from = reinterpret_cast<const std::int32_t*>(most) + i * count;
    std::int32_t all = 0;
    for (int n = 0; n < count; ++n) all = max(all, from[n]);
    return all;
  }

 private:
  template <class T>
  static __device__ __forceinline__ std::int32_t over_half_warp(unsigned order) {
    return Own<T>::magnitude(warp_max<16>(order));
  }
};

/// Of each column, by each warp.
template <>
struct TileMaxima<Scales::kOfColumns> {
  static constexpr int kWarps = kTileThreads / 32;
  Vector<std::int32_t, 4> most[kWarps][kSide / 4];

  template <class T>
  __device__ __forceinline__ void leave(const Own<T>& x, const Tile& tile, int) {
    Vector<std::int32_t, 4> columns[kOwn / 4];
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      unsigned of_column = x.order(0, j);
#pragma unroll
      for (int k = 1; k < kOwn; ++k) of_column = max(of_column, x.order(k, j));
      of_column = max(of_column, __shfl_xor_sync(kAllLanes, of_column, 16));
      columns[j / 4].at[j % 4] = Own<T>::magnitude(of_column);
    }
    if (threadIdx.x % 32 >= 16) return;
#pragma unroll
    for (int i = 0; i < kOwn / 4; ++i) most[threadIdx.x / 32][tile.column / 4 + i] = columns[i];
  }
  [[nodiscard]] __device__ __forceinline__ std::int32_t of_scale(int i, int shift) const {
    std::int32_t all = 0;
    for (int column = i << shift; column < (i + 1) << shift; ++column) {
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp)
        all = max(all, reinterpret_cast<const std::int32_t*>(most[warp])[column]);
    }
    return all;
  }
};

/// words[i]: eight codes of row i or, with `down`, of column i; scaled(k, j): element (k, j) times
/// its factor.
template <class F8, bool kDown, class Scaled>
__device__ __forceinline__ void encode(Vector<unsigned, 2> (&words)[kOwn], const Scaled& scaled) {
  const auto pair = [&](int i, int e) {
    return kDown ? f8_pair<F8>(scaled(e, i), scaled(e + 1, i))
                 : f8_pair<F8>(scaled(i, e), scaled(i, e + 1));
  };
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
#pragma unroll
    for (int e = 0; e < kOwn; e += 4) words[i].at[e / 4] = pair(i, e) | pair(i, e + 2) << 16;
  }
}

template <class F8>
__device__ __forceinline__ float largest_of() {
  using Format = typename F8::Format;
  return float_of_bits((Format::kLargest + Format::kRebias) << Format::kShift);
}

/// call(F8()) for a format.
template <class F>
void for_format(DType format, const F& call) {
  if (format == DType::kF8E4M3) return call(F8E4M3());
  call(F8E5M2());
}

}  // namespace trireme::cuda
