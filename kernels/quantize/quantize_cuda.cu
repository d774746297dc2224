#include "kernels/common/gpu_scratch.h"
#include "kernels/common/reduce.cuh"
#include "kernels/common/turns.cuh"
#include "kernels/quantize/quantize_tile.cuh"

namespace trireme::cuda {
namespace {

/// The scales of a tile: one for some rows, or one for some columns, at most 128; or any.
enum class Scales : std::uint8_t { kOfRows, kOfColumns, kAny };

Scales scales_of_tiles(const QuantizedDim& rows, const QuantizedDim& columns) {
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

// ---- maxima ----

template <class T>
__device__ __forceinline__ std::int32_t magnitude(T value) {
  return static_cast<std::int32_t>(bits_of(to_float(value)) & 0x7fffffffU);
}
__device__ __forceinline__ std::int32_t max_over_half_warp(std::int32_t most) {
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2)
    most = max(most, __shfl_xor_sync(kAllLanes, most, offset));
  return most;
}

/// amax[i] of each of the tile's scales, from all threads; kOfRows: by runs of 1 << shift rows.
template <class T>
__device__ __forceinline__ void max_of_rows(std::int32_t* amax, const T (&x)[kOwn][kOwn],
                                            const Tile& tile, int shift) {
  std::int32_t most[kOwn];
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    most[k] = 0;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) most[k] = max(most[k], magnitude(x[k][j]));
  }
  const bool first = tile.column == 0;
  if (1 << shift >= kOwn) {  // all of a thread's rows have one
#pragma unroll
    for (int k = 1; k < kOwn; ++k) most[0] = max(most[0], most[k]);
    most[0] = max_over_half_warp(most[0]);
    if (first) atomicMax(amax + (tile.row >> shift), most[0]);
    return;
  }
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    most[k] = max_over_half_warp(most[k]);
    if (first) atomicMax(amax + ((tile.row + k) >> shift), most[k]);
  }
}
template <class T>
__device__ __forceinline__ void max_of_columns(std::int32_t* amax, const T (&x)[kOwn][kOwn],
                                               const Tile& tile, int shift) {
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    std::int32_t most = 0;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) most = max(most, magnitude(x[k][j]));
    most = max(most, __shfl_xor_sync(kAllLanes, most, 16));
    if (threadIdx.x % 32 < 16) atomicMax(amax + ((tile.column + j) >> shift), most);
  }
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

struct TileMaxima {
  std::int32_t amax[kSide];
};

/// shared.amax of the tile, seen by all threads.
template <Scales kScales, class T>
__device__ __forceinline__ void find_maxima(std::int32_t* amax, const T (&x)[kOwn][kOwn],
                                            const Tile& tile, const QuantizedDim& rows,
                                            const QuantizedDim& columns) {
  if (threadIdx.x < kSide) amax[threadIdx.x] = 0;
  __syncthreads();
  if (kScales == Scales::kOfRows) {
    max_of_rows(amax, x, tile, rows.tile_shift);
  } else {
    max_of_columns(amax, x, tile, columns.tile_shift);
  }
  __syncthreads();
}

template <Scales kScales, class T>
__global__ void __launch_bounds__(kTileThreads)
    absolute_max_kernel(const __grid_constant__ AbsoluteMaxArgs args) {
  const QuantizedDim &rows = args.rows, &columns = args.columns;
  const Tile tile(rows, columns);
  T x[kOwn][kOwn];
  load_tile(x, args.x, tile, columns.size);
  if constexpr (kScales == Scales::kAny) {
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        if (!tile.has_row(k) || !tile.has_column(j)) continue;
        atomicMax(args.amax +
                      (tile.rows.block + ((tile.row + k) >> rows.tile_shift)) * columns.blocks +
                      tile.columns.block + ((tile.column + j) >> columns.tile_shift),
                  magnitude(x[k][j]));
      }
    }
  } else {
    TileMaxima& shared = smem<TileMaxima>();
    find_maxima<kScales>(shared.amax, x, tile, rows, columns);
    if (threadIdx.x >= kSide) return;
    const auto place = place_of<kScales>(static_cast<int>(threadIdx.x), tile, rows, columns, false);
    if (place >= 0) atomicMax(args.amax + place, shared.amax[threadIdx.x]);
  }
}

/// call(constant) for the way in which a tile's scales lie.
template <class F>
void for_scales(const QuantizedDim& rows, const QuantizedDim& columns, const F& call) {
  switch (scales_of_tiles(rows, columns)) {
    case Scales::kOfRows:
      return call(Width<static_cast<int>(Scales::kOfRows)>());
    case Scales::kOfColumns:
      return call(Width<static_cast<int>(Scales::kOfColumns)>());
    case Scales::kAny:
      return call(Width<static_cast<int>(Scales::kAny)>());
  }
}

void absolute_max(const AbsoluteMaxArgs& args) {
  for_type(args.x_type, [&](auto type) {
    for_scales(args.rows, args.columns, [&](auto scales) {
      constexpr auto kScales = static_cast<Scales>(decltype(scales)::value);
      launch(
          absolute_max_kernel<kScales, decltype(type)>,
          config_of_tiles(args.exec, args.rows, args.columns, sizeof(TileMaxima), "absolute_max"),
          args);
    });
  });
}

// ---- scales ----

__global__ void __launch_bounds__(kTurnThreads) scales_kernel(const ScalesArgs args) {
  const float largest = args.format == DType::kF8E5M2 ? 57344.0F : 448.0F;
  for_each_item<1>(
      args.count, [&](std::int64_t i) { return args.amax[i]; },
      [&](std::int64_t i, std::int32_t amax) { args.scales[i] = scale_of(amax, largest).scale; });
}

void scales(const ScalesArgs& args) {
  launch(scales_kernel, config_of_turns(args.exec, 1, args.count, "scales_of"), args);
}

// ---- codes ----

struct TileCodes {
  std::int32_t amax[kSide];
  float factors[kSide];
  CodesAcross across;
};

/// Each scale is written by the first tile that has it.
__device__ __forceinline__ bool owns_scale(const QuantizeArgs& args, const Tile& tile) {
  return args.scales != nullptr && (!args.rows.whole || tile.rows.begins) &&
         (!args.columns.whole || tile.columns.begins);
}

/// shared.factors, and the scales to memory; where there is no index, 1, so that 0 stays 0.
template <Scales kScales>
__device__ __forceinline__ void set_factors(TileCodes& shared, const QuantizeArgs& args,
                                            const Tile& tile, float largest) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < kSide) {
    const std::int64_t from = place_of<kScales>(i, tile, args.rows, args.columns, false);
    Scale of{1, 1};
    if (from >= 0) {
      of = scale_of(args.find_amax ? shared.amax[i] : args.amax[from], largest);
      if (owns_scale(args, tile))
        args.scales[place_of<kScales>(i, tile, args.rows, args.columns, args.transpose)] = of.scale;
    }
    shared.factors[i] = of.factor;
  }
  __syncthreads();
}

/// Of an element, whatever the blocks; the first of a block writes its scale.
__device__ __forceinline__ float factor_at(const QuantizeArgs& args, const Tile& tile, int k, int j,
                                           float largest) {
  if (!tile.has_row(k) || !tile.has_column(j)) return 1;
  const auto is_first = [](const TileSide& side, int place, int shift) {
    return place == max(side.first, place >> shift << shift);
  };
  const QuantizedDim &rows = args.rows, &columns = args.columns;
  const std::int64_t row = tile.rows.block + ((tile.row + k) >> rows.tile_shift),
                     column = tile.columns.block + ((tile.column + j) >> columns.tile_shift);
  const Scale of = scale_of(args.amax[row * columns.blocks + column], largest);
  if (owns_scale(args, tile) && is_first(tile.rows, tile.row + k, rows.tile_shift) &&
      is_first(tile.columns, tile.column + j, columns.tile_shift)) {
    args.scales[args.transpose ? column * rows.blocks + row : row * columns.blocks + column] =
        of.scale;
  }
  return of.factor;
}

/// f(k, j): the code of element (k, j) and, above it, of the next down (kDown) or to the right.
template <class F8, Scales kScales, class T>
struct Encoder {
  const QuantizeArgs& args;
  const TileCodes& shared;
  const Tile& tile;
  const T (&x)[kOwn][kOwn];
  float largest;

  __device__ __forceinline__ float scaled(int k, int j) const {
    float factor;
    if constexpr (kScales == Scales::kOfRows) {
      factor = shared.factors[(tile.row + k) >> args.rows.tile_shift];
    } else if constexpr (kScales == Scales::kOfColumns) {
      factor = shared.factors[(tile.column + j) >> args.columns.tile_shift];
    } else {
      factor = factor_at(args, tile, k, j, largest);
    }
    return __fmul_rn(to_float(x[k][j]), factor);
  }
  /// Of row k.
  __device__ __forceinline__ Vector<unsigned, 2> along(int k) const {
    Vector<unsigned, 2> codes;
#pragma unroll
    for (int j = 0; j < kOwn; j += 4)
      codes.at[j / 4] = f8_pair<F8>(scaled(k, j), scaled(k, j + 1)) |
                        f8_pair<F8>(scaled(k, j + 2), scaled(k, j + 3)) << 16;
    return codes;
  }
  /// Of column j.
  __device__ __forceinline__ Vector<unsigned, 2> down(int j) const {
    Vector<unsigned, 2> codes;
#pragma unroll
    for (int k = 0; k < kOwn; k += 4)
      codes.at[k / 4] = f8_pair<F8>(scaled(k, j), scaled(k + 1, j)) |
                        f8_pair<F8>(scaled(k + 2, j), scaled(k + 3, j)) << 16;
    return codes;
  }
};

template <Scales kScales, class F8, class T>
__global__ void __launch_bounds__(kTileThreads)
    quantize_kernel(const __grid_constant__ QuantizeArgs args) {
  using Format = typename F8::Format;
  TileCodes& shared = smem<TileCodes>();
  const Tile tile(args.rows, args.columns);
  const float largest = float_of_bits((Format::kLargest + Format::kRebias) << Format::kShift);
  T x[kOwn][kOwn];
  load_tile(x, args.x, tile, args.columns.size);
  if constexpr (kScales != Scales::kAny) {
    if (args.find_amax) find_maxima<kScales>(shared.amax, x, tile, args.rows, args.columns);
    set_factors<kScales>(shared, args, tile, largest);
  }
  const Encoder<F8, kScales, T> encoder{args, shared, tile, x, largest};
  auto* codes = static_cast<std::uint8_t*>(args.codes);
  if (args.transpose) {
    Vector<unsigned, 2> words[kOwn];
#pragma unroll
    for (int j = 0; j < kOwn; ++j) words[j] = encoder.down(j);
    store_across(codes, shared.across, tile, words, args.rows, tile.rows.at);
  } else {
#pragma unroll
    for (int k = 0; k < kOwn; ++k) store_along(codes, tile, k, encoder.along(k), args.columns);
  }
}

/// call(F8()) for a format.
template <class F>
void for_format(DType format, const F& call) {
  if (format == DType::kF8E4M3) return call(F8E4M3());
  call(F8E5M2());
}

void quantize(const QuantizeArgs& args) {
  QuantizeArgs call = args;
  const auto block = [](const QuantizedDim& dim) { return dim.whole ? 0 : dim.block; };
  if (args.find_amax && !gpu_scratch::quantizes_at_once(block(args.rows), block(args.columns))) {
    const auto bytes =
        static_cast<std::size_t>(args.rows.blocks * args.columns.blocks) * sizeof(std::int32_t);
    check_call("quantize", cudaMemsetAsync(args.amax, 0, bytes, stream_of(args.exec)));
    absolute_max({args.exec, args.amax, args.x, args.rows, args.columns, nullptr, args.x_type});
    call.find_amax = false;
  }
  for_format(args.format, [&](auto f8) {
    for_type(args.x_type, [&](auto type) {
      for_scales(args.rows, args.columns, [&](auto scales) {
        constexpr auto kScales = static_cast<Scales>(decltype(scales)::value);
        launch(quantize_kernel<kScales, decltype(f8), decltype(type)>,
               config_of_tiles(args.exec, args.rows, args.columns, sizeof(TileCodes), "quantize"),
               call);
      });
    });
  });
}

// ---- back, and in another order ----

/// Eight codes of a row; those that are of no column are 0.
__device__ __forceinline__ Vector<unsigned, 2> load_codes(const std::uint8_t* from,
                                                          const Tile& tile) {
  if (tile.has_all_columns() && (reinterpret_cast<std::uintptr_t>(from) & 7) == 0)
    return load<2>(reinterpret_cast<const unsigned*>(from));
  Vector<unsigned, 2> codes{};
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    if (tile.has_column(j)) codes.at[j / 4] |= std::uint32_t{from[j]} << j % 4 * 8;
  }
  return codes;
}
__device__ __forceinline__ const std::uint8_t* codes_at(const void* codes, const Tile& tile, int k,
                                                        const QuantizedDim& columns) {
  return static_cast<const std::uint8_t*>(codes) +
         (tile.rows.origin + tile.row + k) * columns.width + tile.columns.at + tile.column;
}

template <class F8, class T>
__global__ void __launch_bounds__(kTileThreads)
    dequantize_kernel(const __grid_constant__ DequantizeArgs args) {
  constexpr int kVector = kWide<T> < kOwn ? kWide<T> : kOwn;
  const Tile tile(args.rows, args.columns);
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    if (!tile.has_row(k)) continue;
    const Vector<unsigned, 2> codes = load_codes(codes_at(args.codes, tile, k, args.columns), tile);
    const std::int64_t row = tile.rows.block + ((tile.row + k) >> args.rows.tile_shift);
    const float* scales = args.scales + row * args.columns.blocks + tile.columns.block;
    T values[kOwn];
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      if (!tile.has_column(j)) continue;
      values[j] = from_float<T>(__fmul_rn(float_of_f8<F8>(codes.at[j / 4] >> j % 4 * 8),
                                          scales[(tile.column + j) >> args.columns.tile_shift]));
    }
    T* const to = static_cast<T*>(args.x) + (tile.rows.origin + tile.row + k) * args.columns.size +
                  tile.columns.origin + tile.column;
    if (tile.has_all_columns() && (reinterpret_cast<std::uintptr_t>(to) & 15) == 0) {
#pragma unroll
      for (int j = 0; j < kOwn; j += kVector) {
        Vector<T, kVector> out;
#pragma unroll
        for (int i = 0; i < kVector; ++i) out.at[i] = values[j + i];
        store(to + j, out);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        if (tile.has_column(j)) to[j] = values[j];
      }
    }
  }
}

void dequantize(const DequantizeArgs& args) {
  for_format(args.format, [&](auto f8) {
    for_type(args.x_type, [&](auto type) {
      launch(dequantize_kernel<decltype(f8), decltype(type)>,
             config_of_tiles(args.exec, args.rows, args.columns, 0, "dequantize"), args);
    });
  });
}

__global__ void __launch_bounds__(kTileThreads)
    reorder_kernel(const __grid_constant__ ReorderArgs args) {
  Tile tile(args.rows, args.columns);
  Vector<unsigned, 2> codes[kOwn];
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    codes[k] = tile.has_row(k) ? load_codes(codes_at(args.from, tile, k, args.columns), tile)
                               : Vector<unsigned, 2>{};
  }
  if (!args.transpose) {
    tile.columns = side_of(args.along, blockIdx.x % args.columns.tiles);
#pragma unroll
    for (int k = 0; k < kOwn; ++k) store_along(args.to, tile, k, codes[k], args.along);
    return;
  }
  Vector<unsigned, 2> words[kOwn] = {};
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
#pragma unroll
    for (int k = 0; k < kOwn; ++k)
      words[j].at[k / 4] |= (codes[k].at[j / 4] >> j % 4 * 8 & 0xffU) << k % 4 * 8;
  }
  store_across(args.to, smem<CodesAcross>(), tile, words, args.along,
               side_of(args.along, blockIdx.x / args.columns.tiles).at);
}

__global__ void __launch_bounds__(kTurnThreads)
    reorder_scales_kernel(float* to, const float* from, std::int64_t rows, std::int64_t columns,
                          bool transpose) {
  for_each_item<1>(
      rows * columns, [&](std::int64_t i) { return from[i]; },
      [&](std::int64_t i, float scale) {
        to[transpose ? i % columns * rows + i / columns : i] = scale;
      });
}

void reorder(const ReorderArgs& args) {
  launch(reorder_kernel,
         config_of_tiles(args.exec, args.rows, args.columns, sizeof(CodesAcross), "reorder"), args);
  const std::int64_t rows = args.rows.blocks, columns = args.columns.blocks;
  launch(reorder_scales_kernel, config_of_turns(args.exec, 1, rows * columns, "reorder"),
         args.to_scales, args.from_scales, rows, columns, args.transpose);
}

__global__ void __launch_bounds__(kTurnThreads)
    join_maxima_kernel(const __grid_constant__ JoinMaximaArgs args) {
  for_each_item<1>(
      args.count,
      [&](std::int64_t i) {
        std::int32_t most = args.most[i];
        for (std::int64_t p = 0; p < args.parts; ++p)
          most = max(most, args.others[p * args.count + i]);
        return most;
      },
      [&](std::int64_t i, std::int32_t most) { args.most[i] = most; });
}

void join_maxima(const JoinMaximaArgs& args) {
  launch(join_maxima_kernel, config_of_turns(args.exec, 1, args.count, "join_maxima"), args);
}

}  // namespace

const QuantizeKernels quantize_cuda = {absolute_max, scales,      quantize, dequantize,
                                       reorder,      join_maxima, nullptr};

}  // namespace trireme::cuda
