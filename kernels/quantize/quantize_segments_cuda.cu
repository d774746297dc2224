// Each tile is of one segment's rows, which its block looks up.

#include "kernels/common/segment_tiles.cuh"
#include "kernels/quantize/quantize_maxima.cuh"
#include "kernels/quantize/quantize_segments_gpu_table.h"

namespace trireme::cuda {
namespace {

/// A block's tile of 128 rows of a segment by 128 columns; `number`: of the segment's rows.
struct SegmentTile {
  int segment, begin, number;
  Tile of;
};

/// False where there is none: the grid is for as many tiles as there may be.
__device__ __forceinline__ bool find_tile(const QuantizeSegmentsGpuArgs& args, SegmentTile& tile) {
  const auto columns = static_cast<unsigned>(args.columns.tiles);
  const ExpertTile rows =
      expert_tile<kSide>({args.begins, args.segments, 1}, 1, blockIdx.x / columns);
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

/// Of a tile's rows or, across, of its columns; kWhole: one for all.
template <bool kAcross, bool kWhole>
struct SegmentFactors {
  TileMaxima<kAcross ? Scales::kOfColumns : Scales::kOfRows> maxima;
  float factors[kSide];

  /// Factor i, and its scale to memory; 1 where there is no index, so that 0 stays 0.
  __device__ __forceinline__ void make(int i, const QuantizeSegmentsGpuArgs& args,
                                       const SegmentTile& tile, std::int64_t block, float largest) {
    const TileSide& side = kAcross ? tile.of.columns : tile.of.rows;
    if (i >= kSide) return;
    Scale of{1, 1};
    if (i >= side.first && i < side.last) {
      of = scale_of(maxima.of_scale(i, 0), largest);
      const std::int64_t index = side.origin + i;
      args.scales[kAcross ? block * args.columns.size + index
                          : index * args.columns.blocks + tile.of.columns.block] = of.scale;
    }
    factors[i] = of.factor;
  }
};
template <bool kAcross>
struct SegmentFactors<kAcross, true> {};

template <bool kAcross, bool kWhole>
struct SegmentSmem {
  SegmentFactors<kAcross, kWhole> factors;
  CodesAcross codes;
};
template <bool kWhole>
struct SegmentSmem<false, kWhole> {
  SegmentFactors<false, kWhole> factors;
};

/// The factors of a thread's rows or columns.
template <bool kAcross, bool kWhole, class T>
__device__ __forceinline__ void find_factors(float (&own)[kOwn], const Own<T>& x,
                                             const QuantizeSegmentsGpuArgs& args,
                                             const SegmentTile& tile, std::int64_t block,
                                             float largest) {
  const auto thread = static_cast<int>(threadIdx.x);
  if constexpr (kWhole) {
    const std::int64_t place = scale_place(args, tile);
    const Scale of = scale_of(args.amax[place], largest);
    if (thread == 0 && tile.of.rows.begins && tile.of.columns.begins) args.scales[place] = of.scale;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) own[i] = of.factor;
  } else {
    auto& shared = smem<SegmentSmem<kAcross, kWhole>>().factors;
    shared.maxima.leave(x, tile.of, 0);
    __syncthreads();
    shared.make(thread, args, tile, block, largest);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      own[i] = shared.factors[(kAcross ? tile.of.column : tile.of.row) + i];
  }
}

template <bool kAcross, bool kWhole, class F8, class T>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<T>)
    quantize_segments_kernel(const __grid_constant__ QuantizeSegmentsGpuArgs args) {
  SegmentTile tile{0, 0, 0, Tile(TileSide{}, TileSide{})};
  if (!find_tile(args, tile)) return;
  // QuantizedSegments::first_block, and those before in the segment.
  const std::int64_t block = (tile.begin + kSide - 1) / kSide + tile.segment + tile.number;
  Own<T> x;
  load_tile(x, args.x, tile.of, args.columns.size);
  float factors[kOwn];
  find_factors<kAcross, kWhole>(factors, x, args, tile, block, largest_of<F8>());
  Vector<unsigned, 2> words[kOwn];
  encode<F8, kAcross>(
      words, [&](int k, int j) { return __fmul_rn(x.value(k, j), factors[kAcross ? j : k]); });
  auto* codes = static_cast<std::uint8_t*>(args.codes);
  if constexpr (kAcross) {
    QuantizedDim rows{};
    rows.width = kSide;
    rows.padded = true;
    store_across(codes + block * args.columns.size * kSide,
                 smem<SegmentSmem<kAcross, kWhole>>().codes, tile.of, words, rows, 0);
  } else {
    store_along(codes, tile.of, words, args.columns);
  }
}

LaunchConfig config_of_segments(const QuantizeSegmentsGpuArgs& args, std::size_t smem_bytes) {
  // Each segment may have a tile that is not full.
  const std::int64_t tiles = args.rows / kSide + min(args.segments, args.rows);
  return {.grid = static_cast<unsigned>(tiles * args.columns.tiles),
          .block = kTileThreads,
          .smem_bytes = smem_bytes,
          .stream = stream_of(args.exec),
          .name = "quantize_segments"};
}

template <bool kAcross, bool kWhole>
void launch_codes(const QuantizeSegmentsGpuArgs& args) {
  for_format(args.format, [&](auto f8) {
    for_type(args.x_type, [&](auto type) {
      launch(quantize_segments_kernel<kAcross, kWhole, decltype(f8), decltype(type)>,
             config_of_segments(args, sizeof(SegmentSmem<kAcross, kWhole>)), args);
    });
  });
}

void quantize(const QuantizeSegmentsGpuArgs& args) {
  if (!args.columns.whole)
    return args.across ? launch_codes<true, false>(args) : launch_codes<false, false>(args);
  const auto bytes =
      static_cast<std::size_t>(args.segments * args.columns.blocks) * sizeof(std::int32_t);
  check_call("quantize_segments", cudaMemsetAsync(args.amax, 0, bytes, stream_of(args.exec)));
  for_type(args.x_type, [&](auto type) {
    launch(segment_maxima_kernel<decltype(type)>, config_of_segments(args, 0), args);
  });
  args.across ? launch_codes<true, true>(args) : launch_codes<false, true>(args);
}

}  // namespace

const QuantizeSegmentsGpuKernels quantize_segments_cuda = {quantize};

}  // namespace trireme::cuda
