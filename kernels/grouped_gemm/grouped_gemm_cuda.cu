// The main loops of gemm over the rows of experts, which the blocks look up in the GPU's memory.

#include "kernels/common/gpu_scratch.h"
#include "kernels/common/segment_tiles.cuh"
#include "kernels/gemm/gemm_fma.cuh"
#include "kernels/gemm/gemm_mma.cuh"
#include "kernels/grouped_gemm/grouped_gemm_gpu_table.h"
#include "kernels/grouped_gemm/kept_sums.cuh"

namespace trireme::cuda {
namespace {

/// A block's tile: where it begins in an expert's result, and where rows and columns end that it
/// has.
struct Bounds {
  std::int64_t row, column, rows, columns;
};

/// A main loop by type: its tiles, what a thread sums, and what becomes of that. `first_row`: of
/// the expert's result in c.
template <class T>
struct MainLoop;

template <>
struct MainLoop<bf16> {
  using Large = LargeMmaTile;
  using Small = SmallMmaTile;
  template <class Tile>
  using Sums = MmaSums<Tile>;

  template <class Tile>
  __device__ __forceinline__ static bool warp_works(const Bounds& tile) {
    return tile.row + warp_at<Tile>().row < tile.rows &&
           tile.column + warp_at<Tile>().column < tile.columns;
  }
  template <class Tile, bool kTransposeA, bool kTransposeB>
  __device__ __forceinline__ static void add(MmaSums<Tile>& sums, const Product<bf16>& product,
                                             const Bounds& tile) {
    multiply_mma<Tile, kTransposeA, kTransposeB>(
        sums, smem<typename Tile::Smem>(), product, warp_works<Tile>(tile),
        [&](int m) { return tile.row + m < tile.rows ? tile.row + m : -1; },
        [&](int n) { return tile.column + n < tile.columns ? tile.column + n : -1; });
  }
  template <class Tile, class E>
  __device__ __forceinline__ static void finish(const MmaSums<Tile>& sums, const E& epilogue,
                                                const DirectSink<typename E::Out>& sink,
                                                const Bounds& tile, std::int64_t first_row) {
    if (!warp_works<Tile>(tile)) return;
    finish_warp<Tile>(sums, epilogue, sink, first_row + tile.row + warp_at<Tile>().row,
                      tile.column + warp_at<Tile>().column, first_row + tile.rows, tile.columns);
  }
};

template <>
struct MainLoop<float> {
  using Large = LargeFmaTile;
  using Small = SmallFmaTile;
  template <class Tile>
  using Sums = FmaSums<Tile>;

  template <class Tile, bool kTransposeA, bool kTransposeB>
  __device__ __forceinline__ static void add(FmaSums<Tile>& sums, const Product<float>& product,
                                             const Bounds& tile) {
    multiply_fma<Tile, kTransposeA, kTransposeB>(
        sums, smem<typename Tile::Smem>(), product,
        [&](int m) { return tile.row + m < tile.rows ? tile.row + m : -1; },
        [&](int n) { return tile.column + n < tile.columns ? tile.column + n : -1; });
  }
  template <class Tile, class E>
  __device__ __forceinline__ static void finish(const FmaSums<Tile>& sums, const E& epilogue,
                                                const DirectSink<typename E::Out>& sink,
                                                const Bounds& tile, std::int64_t first_row) {
    finish_thread<Tile>(sums, epilogue, sink, first_row + tile.row, tile.column,
                        first_row + tile.rows, tile.columns);
  }
};

// ---- rows ----

/// The grid is for as many tiles of rows as there may be.
template <class Tile, bool kTransposeB, class T>
__global__ void __launch_bounds__(Tile::kThreads)
    grouped_kernel(Product<T> product, const SegmentTable table, std::int64_t row_tiles,
                   const DirectSink<T> sink) {
  const TileAt at = tile_at(blockIdx.x, row_tiles, (product.n + Tile::kN - 1) / Tile::kN);
  const ExpertTile rows = expert_tile<Tile::kM>(table, 1, at.row);
  if (rows.expert < 0) return;
  product.b += rows.expert * product.n * product.k;
  const Bounds tile = {rows.row, at.column * Tile::kN, rows.end, product.n};
  typename MainLoop<T>::template Sums<Tile> sums = {};
  MainLoop<T>::template add<Tile, false, kTransposeB>(sums, product, tile);
  MainLoop<T>::template finish<Tile>(sums, PlainEpilogue<T>(), sink, tile, 0);
}

template <class T>
bool wide(const void* operand, std::int64_t row) {
  return reinterpret_cast<std::uintptr_t>(operand) % 16 == 0 &&
         row * static_cast<std::int64_t>(sizeof(T)) % 16 == 0;
}

template <class C>
DirectSink<C> sink_of(C* c, std::int64_t columns) {
  return {{{c, nullptr, nullptr}, {columns, 0, 0}},
          columns,
          columns % 2 == 0 && aligned_to_pairs(sizeof(C), c)};
}

template <class Tile, bool kTransposeB, class T>
void launch_rows(const GroupedGemmGpuArgs& args) {
  // Each expert may have a tile that is not full.
  const std::int64_t tiles = args.rows / Tile::kM + min(args.experts, args.rows);
  const Product<T> product = {static_cast<const T*>(args.a),
                              static_cast<const T*>(args.b),
                              args.rows,
                              args.n,
                              args.k,
                              wide<T>(args.a, args.k),
                              wide<T>(args.b, kTransposeB ? args.k : args.n)};
  launch(grouped_kernel<Tile, kTransposeB, T>,
         {.grid = static_cast<unsigned>(tiles * blocks_for(args.n, Tile::kN)),
          .block = Tile::kThreads,
          .smem_bytes = sizeof(typename Tile::Smem),
          .stream = stream_of(args.exec),
          .name = "grouped_gemm"},
         product, SegmentTable{args.begins, args.experts, args.sources}, tiles,
         sink_of(static_cast<T*>(args.c), args.n));
}

/// Large tiles where the experts fill most of them, and they the GPU.
template <bool kTransposeB, class T>
void multiply_rows(const GroupedGemmGpuArgs& args) {
  using Large = typename MainLoop<T>::Large;
  const std::int64_t tiles = args.rows / Large::kM * blocks_for(args.n, Large::kN);
  if (args.rows >= args.experts * Large::kM && tiles >= args.multiprocessors)
    return launch_rows<Large, kTransposeB, T>(args);
  launch_rows<typename MainLoop<T>::Small, kTransposeB, T>(args);
}

void multiply(const GroupedGemmGpuArgs& args) {
  for_type(args.type, [&](auto type) {
    using T = decltype(type);
    args.transpose_b ? multiply_rows<true, T>(args) : multiply_rows<false, T>(args);
  });
}

// ---- weights ----

struct WeightTiles {
  std::int64_t down, across;  ///< of an expert
  std::int64_t items;
  int levels;
  float* kept;
};

/// Where tile `item` stands, of the tiles of the experts one after the other.
struct WeightTile {
  std::int64_t expert;
  Bounds bounds;
};
template <class Tile, class T>
__device__ __forceinline__ WeightTile weight_tile(std::int64_t item, const WeightTiles& tiles,
                                                  const Product<T>& product) {
  const std::int64_t of_expert = tiles.down * tiles.across;
  const TileAt at = tile_at(item % of_expert, tiles.down, tiles.across);
  return {item / of_expert, {at.row * Tile::kM, at.column * Tile::kN, product.m, product.n}};
}

/// The product over a segment's rows.
template <class T>
__device__ __forceinline__ Product<T> product_of_rows(Product<T> product,
                                                      const std::int32_t* begins) {
  const std::int64_t begin = begins[0];
  product.a += begin * product.m;
  product.b += begin * product.n;
  product.k = begins[1] - begin;
  return product;
}

template <class Tile, class T>
__device__ __forceinline__ void store_weights(const typename MainLoop<T>::template Sums<Tile>& sums,
                                              const WeightTile& tile, bool accumulate,
                                              const DirectSink<float>& sink) {
  const BiasRow<float> none = {nullptr, sink.columns, sink.pairs};
  const StoreEpilogue<float, float> store = {none, accumulate ? sink.outputs.at[0] : nullptr,
                                             nullptr};
  MainLoop<T>::template finish<Tile>(sums, store, sink, tile.bounds,
                                     tile.expert * tile.bounds.rows);
}

/// Of one source. (Loops around the main loop would cost registers, and a second block.)
template <class Tile, class T>
__global__ void __launch_bounds__(Tile::kThreads)
    grouped_weights_kernel(const Product<T> product, const SegmentTable table,
                           const WeightTiles tiles, bool accumulate, const DirectSink<float> sink) {
  const WeightTile tile = weight_tile<Tile>(blockIdx.x, tiles, product);
  const Product<T> of_rows = product_of_rows(product, table.begins + tile.expert);
  if (accumulate && of_rows.k == 0) return;
  typename MainLoop<T>::template Sums<Tile> sums = {};
  MainLoop<T>::template add<Tile, true, false>(sums, of_rows, tile.bounds);
  store_weights<Tile, T>(sums, tile, accumulate, sink);
}

/// Of several, added as KeptSums carries. Blocks take tiles in turns.
template <class Tile, class T>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    grouped_weights_tree_kernel(const Product<T> product, const SegmentTable table,
                                const WeightTiles tiles, bool accumulate,
                                const DirectSink<float> sink) {
  using Sums = typename MainLoop<T>::template Sums<Tile>;
  KeptSums<Sums, Tile::kThreads> kept(tiles.kept, tiles.levels, static_cast<int>(threadIdx.x));
  for (std::int64_t item = blockIdx.x; item < tiles.items; item += gridDim.x) {
    const WeightTile tile = weight_tile<Tile>(item, tiles, product);
    const std::int32_t* begins = table.begins + tile.expert * table.sources;
    Sums sums = {};
    bool given = false;
    for (std::int64_t segment = 0; segment < table.sources; ++segment) {
      const Product<T> of_rows = product_of_rows(product, begins + segment);
      sums = {};
      given = of_rows.k > 0;
      if (given) {
        __syncthreads();  // tiles of the product before are no longer read
        MainLoop<T>::template add<Tile, true, false>(sums, of_rows, tile.bounds);
      }
      given = kept.carry(sums, segment, segment + 1 == table.sources, given);
    }
    if (given || !accumulate) store_weights<Tile, T>(sums, tile, accumulate, sink);
  }
}

template <class Tile, class T>
void launch_weights(const GroupedGemmWeightsGpuArgs& args) {
  const std::int64_t down = blocks_for(args.m, Tile::kM), across = blocks_for(args.n, Tile::kN);
  const WeightTiles tiles = {down, across, args.experts * down * across,
                             gpu_scratch::grouped_weights_levels(args.sources), args.sums};
  const Product<T> product = {
      static_cast<const T*>(args.a), static_cast<const T*>(args.b), args.m, args.n, 0,
      wide<T>(args.a, args.m),       wide<T>(args.b, args.n)};
  const std::int64_t blocks = gpu_scratch::grouped_weights_blocks(tiles.items, args.sources);
  launch(args.sources == 1 ? grouped_weights_kernel<Tile, T> : grouped_weights_tree_kernel<Tile, T>,
         {.grid = static_cast<unsigned>(blocks),
          .block = Tile::kThreads,
          .smem_bytes = sizeof(typename Tile::Smem),
          .stream = stream_of(args.exec),
          .name = "grouped_gemm_weights"},
         product, SegmentTable{args.begins, args.experts, args.sources}, tiles, args.accumulate,
         sink_of(args.c, args.n));
}

void weights(const GroupedGemmWeightsGpuArgs& args) {
  for_type(args.type, [&](auto type) {
    using T = decltype(type);
    using Large = typename MainLoop<T>::Large;
    static_assert(Large::kM * Large::kN == gpu_scratch::kGroupedWeightsTile);
    const std::int64_t large =
        args.experts * blocks_for(args.m, Large::kM) * blocks_for(args.n, Large::kN);
    if (large >= args.multiprocessors) return launch_weights<Large, T>(args);
    launch_weights<typename MainLoop<T>::Small, T>(args);
  });
}

}  // namespace

const GroupedGemmGpuKernels grouped_gemm_cuda = {multiply, weights};

}  // namespace trireme::cuda
