#include "kernels/common/gpu_scratch.h"
#include "kernels/common/turns.cuh"
#include "kernels/quantize/quantize_forms.cuh"

namespace trireme::cuda {
namespace {

// ---- maxima ----

template <Scales kScales, class T>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<T>)
    absolute_max_kernel(const __grid_constant__ AbsoluteMaxArgs args) {
  const QuantizedDim &rows = args.rows, &columns = args.columns;
  const Tile tile(rows, columns);
  Own<T> x;
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
                  Own<T>::magnitude(x.order(k, j)));
      }
    }
  } else {
    auto& maxima = smem<TileMaxima<kScales>>();
    const int shift = kScales == Scales::kOfRows ? rows.tile_shift : columns.tile_shift;
    maxima.leave(x, tile, shift);
    __syncthreads();
    const int i = static_cast<int>(threadIdx.x);
    const auto place = i < kSide ? place_of<kScales>(i, tile, rows, columns, false) : -1;
    if (place >= 0) atomicMax(args.amax + place, maxima.of_scale(i, shift));
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
    default:
      return call(Width<static_cast<int>(Scales::kAny)>());
  }
}

void absolute_max(const AbsoluteMaxArgs& args) {
  for_type(args.x_type, [&](auto type) {
    for_scales(args.rows, args.columns, [&](auto scales) {
      constexpr auto kScales = static_cast<Scales>(decltype(scales)::value);
      launch(absolute_max_kernel<kScales, decltype(type)>,
             config_of_tiles(args.exec, args.rows, args.columns,
                             sizeof(TileMaxima<Scales::kOfColumns>), "absolute_max"),
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

/// Of blocks of any size: an element at a time has its scale.
template <class F8, class T>
__global__ void __launch_bounds__(kTileThreads)
    quantize_any_kernel(const __grid_constant__ QuantizeArgs args) {
  const Tile tile(args.rows, args.columns);
  Own<T> x;
  load_tile(x, args.x, tile, args.columns.size);
  Vector<unsigned, 2> words[kOwn];
  const auto scaled = [&](int k, int j) {
    return __fmul_rn(x.value(k, j), factor_at(args, tile, k, j, largest_of<F8>()));
  };
  auto* codes = static_cast<std::uint8_t*>(args.codes);
  if (args.transpose) {
    encode<F8, true>(words, scaled);
    store_across(codes, smem<CodesAcross>(), tile, words, args.rows, tile.rows.at);
  } else {
    encode<F8, false>(words, scaled);
    store_along(codes, tile, words, args.columns);
  }
}

/// With maxima that are given, or that a tile finds itself.
QuantizeArgs with_maxima(const QuantizeArgs& args) {
  QuantizeArgs call = args;
  const auto block = [](const QuantizedDim& dim) { return dim.whole ? 0 : dim.block; };
  if (args.find_amax && !gpu_scratch::quantizes_at_once(block(args.rows), block(args.columns))) {
    const auto bytes =
        static_cast<std::size_t>(args.rows.blocks * args.columns.blocks) * sizeof(std::int32_t);
    check_call("quantize", cudaMemsetAsync(args.amax, 0, bytes, stream_of(args.exec)));
    absolute_max({args.exec, args.amax, args.x, args.rows, args.columns, nullptr, args.x_type});
    call.find_amax = false;
  }
  return call;
}

/// Of matrices that stand in memory.
template <Scales kAlong, Scales kAcross>
void launch_matrix(const QuantizeBothArgs& args) {
  const QuantizeArgs& of = kAlong != Scales::kNone ? args.along : args.across;
  const bool both = kAlong != Scales::kNone && kAcross != Scales::kNone;
  for_type(of.x_type, [&](auto type) {
    launch_forms<kAlong, kAcross>(args, MatrixSource<decltype(type)>{of.x, of.columns.size},
                                  both ? "quantize_both" : "quantize");
  });
}

void quantize_any(const QuantizeArgs& args) {
  for_format(args.format, [&](auto f8) {
    for_type(args.x_type, [&](auto type) {
      launch(quantize_any_kernel<decltype(f8), decltype(type)>,
             config_of_tiles(args.exec, args.rows, args.columns, sizeof(CodesAcross), "quantize"),
             args);
    });
  });
}

void quantize(const QuantizeArgs& args) {
  const QuantizeArgs call = with_maxima(args);
  const bool across = args.transpose;
  switch (scales_of_tiles(args.rows, args.columns)) {
    case Scales::kOfRows:
      return across ? launch_matrix<Scales::kNone, Scales::kOfRows>({{}, call})
                    : launch_matrix<Scales::kOfRows, Scales::kNone>({call, {}});
    case Scales::kOfColumns:
      return across ? launch_matrix<Scales::kNone, Scales::kOfColumns>({{}, call})
                    : launch_matrix<Scales::kOfColumns, Scales::kNone>({call, {}});
    default:
      return quantize_any(call);
  }
}

void quantize_both(const QuantizeBothArgs& args) {
  QuantizeBothArgs call{with_maxima(args.along), args.across};
  const bool found = args.along.find_amax && !call.along.find_amax;
  if (found && args.across.amax == args.along.amax) call.across.find_amax = false;
  call.across = with_maxima(call.across);
  const Scales along = scales_of_tiles(args.along.rows, args.along.columns),
               across = scales_of_tiles(args.across.rows, args.across.columns);
  if (along == Scales::kOfRows && across == Scales::kOfColumns)
    return launch_matrix<Scales::kOfRows, Scales::kOfColumns>(call);
  if (along == Scales::kOfRows && across == Scales::kOfRows)
    return launch_matrix<Scales::kOfRows, Scales::kOfRows>(call);
  quantize(call.along);
  quantize(call.across);
}

// ---- back, and in another order ----

/// codes[k]: eight of a thread's row k; those of no row or no column are 0.
__device__ __forceinline__ void load_codes(Vector<unsigned, 2> (&codes)[kOwn], const void* from,
                                           const Tile& tile, const QuantizedDim& columns) {
  const std::uint8_t* const start = static_cast<const std::uint8_t*>(from) +
                                    (tile.rows.origin + tile.row) * columns.width +
                                    tile.columns.at + tile.column;
  if (tile.has_all_rows() && tile.has_all_columns() && rows_begin_at(start, columns.width, 8)) {
#pragma unroll
    for (int k = 0; k < kOwn; ++k)
      codes[k] = load<2>(reinterpret_cast<const unsigned*>(start + k * columns.width));
    return;
  }
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    codes[k] = {};
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      if (tile.has_row(k) && tile.has_column(j))
        codes[k].at[j / 4] |= std::uint32_t{start[k * columns.width + j]} << j % 4 * 8;
    }
  }
}

template <class F8, class T>
__global__ void __launch_bounds__(kTileThreads)
    dequantize_kernel(const __grid_constant__ DequantizeArgs args) {
  constexpr int kVector = kWide<T> < kOwn ? kWide<T> : kOwn;
  const Tile tile(args.rows, args.columns);
  Vector<unsigned, 2> codes[kOwn];
  load_codes(codes, args.codes, tile, args.columns);
  T* const to = static_cast<T*>(args.x) + (tile.rows.origin + tile.row) * args.columns.size +
                tile.columns.origin + tile.column;
  const auto bytes = static_cast<std::int64_t>(sizeof(T));
  const bool whole = tile.has_all_columns() && rows_begin_at(to, args.columns.size * bytes, 16);
  const auto scale_at = [&](int k, int j) {  // of the nearest index
    const int r = min(max(tile.row + k, tile.rows.first), tile.rows.last - 1),
              c = min(max(tile.column + j, tile.columns.first), tile.columns.last - 1);
    return args.scales[(tile.rows.block + (r >> args.rows.tile_shift)) * args.columns.blocks +
                       tile.columns.block + (c >> args.columns.tile_shift)];
  };
  const bool one_scale = 1 << args.columns.tile_shift >= kOwn;  // of a row
  float scales[kOwn];
#pragma unroll
  for (int k = 0; k < kOwn; ++k) scales[k] = scale_at(k, 0);
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    if (!tile.has_row(k)) continue;
    T values[kOwn];
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      values[j] = from_float<T>(__fmul_rn(float_of_f8<F8>(codes[k].at[j / 4] >> j % 4 * 8),
                                          one_scale ? scales[k] : scale_at(k, j)));
    }
    T* const row_of_x = to + k * args.columns.size;
    if (whole) {
#pragma unroll
      for (int j = 0; j < kOwn; j += kVector) {
        Vector<T, kVector> out;
#pragma unroll
        for (int i = 0; i < kVector; ++i) out.at[i] = values[j + i];
        store(row_of_x + j, out);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        if (tile.has_column(j)) row_of_x[j] = values[j];
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
  const unsigned tiles = static_cast<unsigned>(args.columns.tiles);
  Vector<unsigned, 2> codes[kOwn];
  load_codes(codes, args.from, tile, args.columns);
  if (!args.transpose) {
    tile.columns = side_of(args.along, blockIdx.x % tiles);
    store_along(args.to, tile, codes, args.along);
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
               side_of(args.along, blockIdx.x / tiles).at);
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

const QuantizeKernels quantize_cuda = {absolute_max, scales,  quantize,    quantize_both,
                                       dequantize,   reorder, join_maxima, nullptr};

}  // namespace trireme::cuda
