// Each tile is of one segment's rows, which its block looks up.

#include "kernels/common/fast_divide.cuh"
#include "kernels/quantize/quantize_forms.cuh"
#include "kernels/quantize/quantize_segments.cuh"
#include "kernels/quantize/quantize_segments_gpu_table.h"

namespace trireme::cuda {
namespace {

/// Rows of tokens: row r is x[row_slot[r] / slots].
struct TokenSource {
  using Value = bf16;
  const bf16* x;
  std::int64_t stride;
  const std::int32_t* row_slot;
  FastDivide slots;

  __device__ __forceinline__ void load(Own<bf16>& own, const Tile& tile) const {
    const std::int64_t column = tile.columns.origin + tile.column;
    std::int64_t token[kOwn];
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      token[k] = -1;
      if (tile.has_row(k))
        token[k] = slots.quotient(static_cast<unsigned>(row_slot[tile.rows.origin + tile.row + k]));
    }
    const bool whole = tile.has_all_columns() &&
                       rows_begin_at(x + column, stride * std::int64_t{sizeof(bf16)}, 16);
    const unsigned columns = tile.own_columns();
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      Vector<bf16, kOwn> row = {};
      const bf16* const from = x + token[k] * stride + column;
      if (whole && token[k] >= 0) {
        row = cuda::load<kOwn>(from);
      } else {
#pragma unroll
        for (int j = 0; j < kOwn; ++j) {
          if (token[k] >= 0 && (columns >> j & 1) != 0) row.at[j] = from[j];
        }
      }
      own.put(k, row);
    }
  }
};

__device__ __forceinline__ bool find_tile(const QuantizeSegmentsGpuArgs& args, SegmentTile& tile) {
  const auto columns = static_cast<unsigned>(args.columns.tiles);
  if (!find_tile(args.begins, args.segments, columns, tile)) return false;
  tile.of.columns = side_of(args.columns, blockIdx.x % columns);
  return true;
}

// ---- a scale for each segment and part of columns ----

/// A tile lies in one part.
__device__ __forceinline__ std::int64_t scale_place(const QuantizeSegmentsGpuArgs& args,
                                                    const SegmentTile& tile) {
  return tile.segment * args.columns.blocks + tile.of.columns.block;
}

template <class T>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<T>)
    segment_maxima_kernel(const __grid_constant__ QuantizeSegmentsGpuArgs args) {
  SegmentTile tile{0, 0, 0, Tile(TileSide{}, TileSide{})};
  if (!find_tile(args, tile)) return;
  Own<T> x;
  load_tile(x, args.x, tile.of, args.columns.size);
  unsigned most = 0;
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) most = max(most, x.order(k, j));
  }
  most = warp_max(most);
  if (threadIdx.x % 32 == 0)
    atomicMax(args.amax + scale_place(args, tile), Own<T>::magnitude(most));
}

// ---- codes ----

/// With one scale for all, by the maxima that are there.
__device__ __forceinline__ float whole_factor(const QuantizeSegmentsGpuArgs& args,
                                              const SegmentTile& tile, float largest) {
  const std::int64_t place = scale_place(args, tile);
  const Scale of = scale_of(args.amax[place], largest);
  if (threadIdx.x == 0 && tile.of.rows.begins && tile.of.columns.begins)
    args.scales[place] = of.scale;
  return of.factor;
}

template <bool kWhole, class F8, class Source>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<typename Source::Value>)
    segments_along_kernel(const __grid_constant__ QuantizeSegmentsGpuArgs args,
                          const __grid_constant__ Source source) {
  SegmentTile tile{0, 0, 0, Tile(TileSide{}, TileSide{})};
  if (!find_tile(args, tile)) return;
  Own<typename Source::Value> x;
  source.load(x, tile.of);
  float factors[kOwn];
  if constexpr (kWhole) {
    const float factor = whole_factor(args, tile, largest_of<F8>());
#pragma unroll
    for (int i = 0; i < kOwn; ++i) factors[i] = factor;
  } else {
    smem<SegmentFactors<false>>().find(
        factors, x, tile.of, largest_of<F8>(), [&](std::int64_t row, float scale) {
          args.scales[row * args.columns.blocks + tile.of.columns.block] = scale;
        });
  }
  Vector<unsigned, 2> words[kOwn];
  encode<F8, false>(words, [&](int k, int j) { return __fmul_rn(x.value(k, j), factors[k]); });
  store_along(static_cast<std::uint8_t*>(args.codes), tile.of, words, args.columns);
}

template <bool kWhole, class F8, class Source>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<typename Source::Value>)
    segments_across_kernel(const __grid_constant__ QuantizeSegmentsGpuArgs args,
                           const __grid_constant__ Source source) {
  SegmentTile tile{0, 0, 0, Tile(TileSide{}, TileSide{})};
  if (!find_tile(args, tile)) return;
  Own<typename Source::Value> x;
  source.load(x, tile.of);
  auto* const codes = static_cast<std::uint8_t*>(args.codes);
  if constexpr (kWhole) {
    const float factor = whole_factor(args, tile, largest_of<F8>());
    Vector<unsigned, 2> words[kOwn];
    encode<F8, true>(words, [&](int k, int j) { return __fmul_rn(x.value(k, j), factor); });
    store_across(codes, args.columns.size, smem<CodesAcross>(), tile, words);
  } else {
    quantize_across<F8>(smem<AcrossMemory>(), x, tile, {codes, args.scales, args.columns.size});
  }
}

template <bool kWhole, class Source>
void launch_codes(const QuantizeSegmentsGpuArgs& args, const Source& source) {
  const std::size_t bytes = !args.across ? (kWhole ? 0 : sizeof(SegmentFactors<false>))
                            : kWhole     ? sizeof(CodesAcross)
                                         : sizeof(AcrossMemory);
  const LaunchConfig config = config_of_segments(args.exec, args.rows, args.segments,
                                                 args.columns.tiles, bytes, "quantize_segments");
  for_format(args.format, [&](auto f8) {
    using F8 = decltype(f8);
    launch(args.across ? segments_across_kernel<kWhole, F8, Source>
                       : segments_along_kernel<kWhole, F8, Source>,
           config, args, source);
  });
}

void quantize(const QuantizeSegmentsGpuArgs& args) {
  if (args.row_slot != nullptr)
    return launch_codes<false>(
        args, TokenSource{static_cast<const bf16*>(args.x), args.columns.size, args.row_slot,
                          FastDivide(args.slots)});
  if (args.columns.whole) {
    const auto bytes =
        static_cast<std::size_t>(args.segments * args.columns.blocks) * sizeof(std::int32_t);
    check_call("quantize_segments", cudaMemsetAsync(args.amax, 0, bytes, stream_of(args.exec)));
  }
  for_type(args.x_type, [&](auto type) {
    using T = decltype(type);
    const MatrixSource<T> source{args.x, args.columns.size};
    if (!args.columns.whole) return launch_codes<false>(args, source);
    launch(segment_maxima_kernel<T>,
           config_of_segments(args.exec, args.rows, args.segments, args.columns.tiles, 0,
                              "quantize_segments"),
           args);
    launch_codes<true>(args, source);
  });
}

}  // namespace

const QuantizeSegmentsGpuKernels quantize_segments_cuda = {quantize};

}  // namespace trireme::cuda
