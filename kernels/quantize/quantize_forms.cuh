#pragma once
// Codes of the tiles of a source of values, in one order or both: of a matrix that stands in memory
// (kernels/quantize), or of what an op makes and stores nowhere else.

#include "kernels/quantize/quantize_maxima.cuh"

namespace trireme::cuda {

/// A source has `Value`, the type in which its values would be stored, and load(x, tile): a
/// thread's of a tile, rounded to it, 0 where there is none. This one is x [rows, stride].
template <class T>
struct MatrixSource {
  using Value = T;
  const void* x;
  std::int64_t stride;
  __device__ __forceinline__ void load(Own<T>& own, const Tile& tile) const {
    load_tile(own, x, tile, stride);
  }
};

/// Each scale is written by the first tile that has it.
__device__ __forceinline__ bool owns_scale(const QuantizeArgs& args, const Tile& tile) {
  return args.scales != nullptr && (!args.rows.whole || tile.rows.begins) &&
         (!args.columns.whole || tile.columns.begins);
}

/// The scales of one form of a tile, by way of memory that its threads share. In turn: leave, a
/// barrier, make, a barrier, factor.
template <Scales kScales>
struct TileScales {
  TileMaxima<kScales> maxima;
  float factors[kSide];

  template <class T>
  __device__ __forceinline__ void leave(const Own<T>& x, const QuantizeArgs& args,
                                        const Tile& tile) {
    if (args.find_amax) maxima.leave(x, tile, shift_of(args));
  }
  /// Factor i, and its scale to memory; where there is no index, 1, so that 0 stays 0.
  __device__ __forceinline__ void make(int i, const QuantizeArgs& args, const Tile& tile,
                                       float largest) {
    if (i < 0 || i >= kSide) return;
    const std::int64_t from = place_of<kScales>(i, tile, args.rows, args.columns, false);
    Scale of{1, 1};
    if (from >= 0) {
      of = scale_of(args.find_amax ? maxima.of_scale(i, shift_of(args)) : args.amax[from], largest);
      if (owns_scale(args, tile))
        args.scales[place_of<kScales>(i, tile, args.rows, args.columns, args.transpose)] = of.scale;
    }
    factors[i] = of.factor;
  }
  /// Of a thread's rows, or columns.
  __device__ __forceinline__ void get(float (&own)[kOwn], const QuantizeArgs& args,
                                      const Tile& tile) const {
    const int first = kScales == Scales::kOfRows ? tile.row : tile.column;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) own[i] = factors[(first + i) >> shift_of(args)];
  }

 private:
  static __device__ __forceinline__ int shift_of(const QuantizeArgs& args) {
    return kScales == Scales::kOfRows ? args.rows.tile_shift : args.columns.tile_shift;
  }
};
template <>
struct TileScales<Scales::kNone> {};

template <Scales kAlong, Scales kAcross>
struct TileForms {
  TileScales<kAlong> along;
  TileScales<kAcross> across;
  CodesAcross codes;
};
template <Scales kAlong>
struct TileForms<kAlong, Scales::kNone> {
  TileScales<kAlong> along;
};

/// A tile as one form has it: in that of x^T its blocks may be others.
struct TileForm {
  const Tile& tile;
  const QuantizeArgs& args;
};

/// Codes and scales of a tile of x, of x^T, or both, by all threads of a block. May follow itself
/// with the same `shared`, which has room for these forms.
template <Scales kAlong, Scales kAcross, class F8, class T, class Shared>
__device__ __forceinline__ void quantize_tile(Shared& shared, const Own<T>& x,
                                              const TileForm& along, const TileForm& across) {
  constexpr bool kHasAlong = kAlong != Scales::kNone, kHasAcross = kAcross != Scales::kNone;
  if constexpr (kHasAlong) shared.along.leave(x, along.args, along.tile);
  if constexpr (kHasAcross) shared.across.leave(x, across.args, across.tile);
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (kHasAlong) shared.along.make(thread, along.args, along.tile, largest_of<F8>());
  if constexpr (kHasAcross) {
    const int behind = kHasAlong ? thread - kSide : thread;
    shared.across.make(behind, across.args, across.tile, largest_of<F8>());
  }
  __syncthreads();
  float factors[kOwn];
  Vector<unsigned, 2> words[kOwn];
  if constexpr (kHasAlong) {
    shared.along.get(factors, along.args, along.tile);
    encode<F8, false>(words, [&](int k, int j) {
      return __fmul_rn(x.value(k, j), factors[kAlong == Scales::kOfRows ? k : j]);
    });
    store_along(static_cast<std::uint8_t*>(along.args.codes), along.tile, words,
                along.args.columns);
  }
  if constexpr (kHasAcross) {
    shared.across.get(factors, across.args, across.tile);
    encode<F8, true>(words, [&](int k, int j) {
      return __fmul_rn(x.value(k, j), factors[kAcross == Scales::kOfRows ? k : j]);
    });
    store_across(static_cast<std::uint8_t*>(across.args.codes), shared.codes, across.tile, words,
                 across.args.rows, across.tile.rows.at);
  }
}

/// Codes of x, of x^T, or both, each with scales of some rows or some columns of its tiles.
template <Scales kAlong, Scales kAcross, class F8, class Source>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<typename Source::Value>)
    quantize_kernel(const __grid_constant__ QuantizeBothArgs args,
                    const __grid_constant__ Source source) {
  constexpr bool kHasAlong = kAlong != Scales::kNone, kHasAcross = kAcross != Scales::kNone;
  const QuantizeArgs& of = kHasAlong ? args.along : args.across;
  const Tile tile(of.rows, of.columns);
  Own<typename Source::Value> x;
  source.load(x, tile);
  const Tile turned = kHasAlong && kHasAcross ? Tile(args.across.rows, args.across.columns) : tile;
  quantize_tile<kAlong, kAcross, F8>(smem<TileForms<kAlong, kAcross>>(), x, {tile, args.along},
                                     {turned, args.across});
}

template <Scales kAlong, Scales kAcross, class Source>
void launch_forms(const QuantizeBothArgs& args, const Source& source, const char* name) {
  const QuantizeArgs& of = kAlong != Scales::kNone ? args.along : args.across;
  for_format(of.format, [&](auto f8) {
    launch(quantize_kernel<kAlong, kAcross, decltype(f8), Source>,
           config_of_tiles(of.exec, of.rows, of.columns, sizeof(TileForms<kAlong, kAcross>), name),
           args, source);
  });
}

}  // namespace trireme::cuda
