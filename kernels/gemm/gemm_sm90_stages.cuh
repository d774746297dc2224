#pragma once
// What Hopper's main loops share around their products: a cluster's beginning
// and end, and how a warpgroup's sums leave: through shared memory and TMA.

#include "kernels/common/ptx.cuh"
#include "kernels/common/ring.cuh"
#include "kernels/common/sum_tiles.cuh"
#include "kernels/common/tensor_map.cuh"
#include "kernels/gemm/gemm_epilogue_args.cuh"
#include "kernels/gemm/gemm_tile.cuh"

namespace trireme::cuda {

/// One warp has read a stage: each block that writes there is reported.
template <class T>
__device__ __forceinline__ void release_stage(std::uint64_t* empty) {
  if (threadIdx.x % 32 != 0) return;
  if constexpr (T::kCluster == 1) {
    ptx::mbarrier_arrive(empty);
  } else {
#pragma unroll
    for (int block = 0; block < T::kCluster; ++block) ptx::mbarrier_arrive_at(empty, block);
  }
}

template <class T>
__device__ __forceinline__ void sync_cluster() {
  if constexpr (T::kCluster > 1) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
}
/// A kernel's first act: the stages' mbarriers, of which `full` takes so many arrivals.
template <class T>
__device__ __forceinline__ void begin_ring(typename T::Smem& s, int arrivals) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < T::kStages; ++i) {
      ptx::mbarrier_init(&s.full[i], arrivals);
      ptx::mbarrier_init(&s.empty[i], T::kCluster * T::kConsumers * 4);  // one arrival a warp
    }
    ptx::fence_mbarrier_init();
  }
  sync_cluster<T>();
}
/// A block's mbarriers are there until no other arrives on them.
template <class T>
__device__ __forceinline__ void leave_cluster() {
  if constexpr (T::kCluster > 1) ptx::cluster_sync();
}

/// Where a warpgroup's part of a tile begins in the result.
struct TileOrigin {
  int row, column;
};
/// What exists of the result for a tile: rows, and columns that are not another tile's.
struct ResultEnd {
  int m, n;
};
/// A warpgroup's tiles on their way out, which take turns.
using OutTiles = bf16[2][64][64];

/// Groups of 8 columns that an epilogue reads its operands of before it uses the first: a thread
/// has a pair of each group and half.
template <class E>
inline constexpr int kGroups = E::kLoads / 2;

/// Columns of an output that leave as one tile of 64 rows.
template <class E>
inline constexpr int kTileColumns = E::kTogether ? kGroups<E> * 8 : 64;

/// The one output of a call, or each, of a pair of neighbours, as words of two bf16.
template <class E, int kOutput>
struct PairSink {
  static constexpr int kWords = E::kTogether ? E::kOutputs : 1;
  template <int kOther>
  static constexpr bool kTakes = E::kTogether || kOther == kOutput;
  std::uint32_t (&words)[kWords];

  __device__ __forceinline__ bool has(std::int64_t) const { return true; }
  template <int kOther>
  __device__ __forceinline__ void put(std::int64_t, std::int64_t, float2 value) const {
    if constexpr (kTakes<kOther>) {
      words[E::kTogether ? kOther : 0] = pack(value.x, value.y);
    }
  }
};

/// Sums of a thread for eight columns of a result.
template <class E>
inline constexpr int kSumsOfEight = E::kDual ? 8 : 4;

/// The thread's two rows, 8 apart, and of each eight columns the first of its two.
struct ThreadAt {
  int row, column;
};
__device__ __forceinline__ ThreadAt thread_at(TileOrigin at) {
  const int lane = static_cast<int>(threadIdx.x) % 32,
            warp = static_cast<int>(threadIdx.x) / 32 % 4;
  return {at.row + warp * 16 + lane / 4, at.column + lane % 4 * 2};
}

/// Hands a pair to the epilogue.
template <class E, class Sink, class State, class Read>
__device__ __forceinline__ void finish_pair(const E& epilogue, const Sink& sink, int row,
                                            int column, const State& state, const Read& read,
                                            const float* sums) {
  if constexpr (E::kDual) {
    epilogue(sink, row, column, state, read, float2{sums[0], sums[1]}, float2{sums[4], sums[5]});
  } else {
    epilogue(sink, row, column, state, read, float2{sums[0], sums[1]});
  }
}

/// The epilogue of 64 rows and kTileColumns<E> columns, all of which exist, into swizzled tiles in
/// shared memory: of kOutput, or one after the other of all outputs. Loads come first, as many as
/// the epilogue asks for: one behind the other they would take a round trip each. `before_use`
/// runs beside them.
template <int kOutput, class E, class BeforeUse>
__device__ __forceinline__ void stage_block(bf16* tiles, const E& epilogue, const float* sums,
                                            TileOrigin origin, BeforeUse before_use) {
  using Sink = PairSink<E, kOutput>;
  constexpr int kColumns = kTileColumns<E>, kParts = kColumns / 8,
                kLoaded = kGroups<E> < 2 ? 2 : kGroups<E>;
  // stmatrix: a lane names eight columns of a row. The swizzle moves them by the row's number.
  const int lane = static_cast<int>(threadIdx.x) % 32,
            row = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane % 16;
  const int to = row * kColumns + ((lane / 16) ^ (row / (8 / kParts) % kParts)) * 8;
  const ThreadAt at = thread_at(origin);
#pragma unroll
  for (int first = 0; first < kParts; first += kLoaded) {
    decltype(epilogue.load(0, 0)) read[kLoaded][2];
#pragma unroll
    for (int group = 0; group < kLoaded; ++group) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        read[group][half] = epilogue.load(at.row + half * 8, at.column + (first + group) * 8);
    }
    if (first == 0) before_use();
#pragma unroll
    for (int group = 0; group < kLoaded; group += 2) {
      std::uint32_t words[Sink::kWords][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = at.column + (first + group + i) * 8;
        const auto state = epilogue.column(column);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          std::uint32_t pair[Sink::kWords];
          finish_pair(epilogue, Sink{pair}, at.row + half * 8, column, state, read[group + i][half],
                      sums + (first + group + i) * kSumsOfEight<E> + half * 2);
#pragma unroll
          for (int word = 0; word < Sink::kWords; ++word) words[word][i * 2 + half] = pair[word];
        }
      }
#pragma unroll
      for (int word = 0; word < Sink::kWords; ++word)
        ptx::stmatrix_x4(tiles + word * 64 * kColumns + (to ^ (first + group) * 8), words[word]);
    }
  }
}

/// The epilogue of kCount x 8 columns, element after element, of those that exist.
template <int kCount, class E>
__device__ __forceinline__ void put_columns(const E& epilogue,
                                            const DirectSink<typename E::Out>& sink,
                                            const float* sums, TileOrigin origin, ResultEnd end) {
  const ThreadAt at = thread_at(origin);
  decltype(epilogue.load(0, 0)) read[kCount][2] = {};
#pragma unroll
  for (int group = 0; group < kCount; ++group) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = at.row + half * 8, column = at.column + group * 8;
      if (row < end.m && column < end.n) read[group][half] = epilogue.load(row, column);
    }
  }
#pragma unroll
  for (int group = 0; group < kCount; ++group) {
    const int column = at.column + group * 8;
    if (column >= end.n) continue;
    const auto state = epilogue.column(column);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = at.row + half * 8;
      if (row >= end.m) continue;
      finish_pair(epilogue, sink, row, column, state, read[group][half],
                  sums + group * kSumsOfEight<E> + half * 2);
    }
  }
}

/// How a warpgroup's sums leave by TMA: through its tiles in turn, to the outputs of these maps.
struct OutWay {
  OutTiles& tiles;
  const TensorMap* maps;
  int consumer;
  int& buffer;
};

/// The epilogue of kTileColumns<E> columns for one output, through one of two tiles in turn, or for
/// all of them, through a tile each.
template <int kOutput, class E>
__device__ __forceinline__ void store_output(const OutWay& way, const E& epilogue,
                                             const Outputs<bf16>& outputs, const float* sums,
                                             TileOrigin at) {
  constexpr int kTile = 64 * kTileColumns<E>, kOutputs = E::kTogether ? E::kOutputs : 1;
  static_assert((E::kTogether ? kOutputs : 2) * kTile <= 2 * 64 * 64);
  const bool elected = threadIdx.x % 128 == 0;
  bf16* tiles = &way.tiles[0][0][0] + way.buffer * kTile;
  if constexpr (!E::kTogether) way.buffer ^= 1;
  stage_block<kOutput>(tiles, epilogue, sums, at, [&] {  // the tiles' last stores have read them
    if (elected) ptx::bulk_wait_read<E::kTogether ? 0 : 1>();
    ptx::barrier_sync(1 + way.consumer, 128);
  });
  ptx::fence_proxy_async_shared();
  ptx::barrier_sync(1 + way.consumer, 128);
  if (!elected) return;
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) {
    const int output = E::kTogether ? i : kOutput;
    if (outputs.at[output] != nullptr)
      ptx::tma_store_2d(way.maps[output], at.column, at.row, tiles + i * kTile);
  }
  ptx::bulk_commit();
}

/// The same for all outputs.
template <class E>
__device__ __forceinline__ void store_block(const OutWay& way, const E& epilogue,
                                            const Outputs<bf16>& outputs, const float* sums,
                                            TileOrigin at) {
  store_output<0>(way, epilogue, outputs, sums, at);
  if constexpr (E::kOutputs > 1 && !E::kTogether) {
    if (outputs.at[1] != nullptr) store_output<1>(way, epilogue, outputs, sums, at);
  }
  if constexpr (E::kOutputs > 2 && !E::kTogether) {
    if (outputs.at[2] != nullptr) store_output<2>(way, epilogue, outputs, sums, at);
  }
}

/// 64 rows and 32 columns of f32 sums, all of which exist, become c or are added to it.
__device__ __forceinline__ void store_floats(const OutWay& way, bool adds, const float* sums,
                                             TileOrigin at) {
  static_assert(sizeof(float[64][kSumColumns]) == sizeof way.tiles[0]);
  const bool elected = threadIdx.x % 128 == 0;
  auto* tile = reinterpret_cast<float*>(&way.tiles[way.buffer][0][0]);
  way.buffer ^= 1;
  float block[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) block[i] = sums[i];
  if (elected) ptx::bulk_wait_read<1>();
  ptx::barrier_sync(1 + way.consumer, 128);
  store_sums<64>(tile, thread_at({0, 0}).row, block, 1);
  ptx::fence_proxy_async_shared();
  ptx::barrier_sync(1 + way.consumer, 128);
  if (!elected) return;
  if (adds) {
    ptx::tma_add_2d(way.maps[0], at.column, at.row, tile);
  } else {
    ptx::tma_store_2d(way.maps[0], at.column, at.row, tile);
  }
  ptx::bulk_commit();
}

/// The block of bf16 results by an epilogue of which is known what a block that exists knows: all
/// moves in whole pairs, and perhaps nothing is added.
template <class E>
__device__ __forceinline__ void store_known(const OutWay& way, const E& epilogue,
                                            const Outputs<bf16>& outputs, const float* sums,
                                            TileOrigin at) {
  if constexpr (requires { epilogue.plain(); }) {
    if (epilogue.is_plain()) return store_block(way, epilogue.plain(), outputs, sums, at);
  }
  E known = epilogue;
  if constexpr (requires { known.bias; }) known.bias.pairs = true;
  store_block(way, known, outputs, sums, at);
  if constexpr (requires { epilogue.gather(known); }) epilogue.gather(known);
}

/// What follows kColumns of a warpgroup's sums. By TMA, where it can be, leaves what has no columns
/// of another tile's behind it; what is cut at the result's end goes element after element.
template <int kColumns, class E>
__device__ __forceinline__ void finish_sums(const OutWay& way, bool by_tma, const E& epilogue,
                                            const DirectSink<typename E::Out>& direct,
                                            const float* sums, TileOrigin at, ResultEnd end) {
  constexpr bool kNarrow = sizeof(typename E::Out) == sizeof(bf16);
  constexpr int kBlock = kNarrow ? kTileColumns<E> : kSumColumns;
  constexpr int kStep = kGroups<E> * 8 < kBlock ? kGroups<E> * 8 : kBlock;
  bool whole = by_tma && at.row + 64 <= end.m;
  if constexpr (!kNarrow) whole = whole && epilogue.only_adds();
#pragma unroll
  for (int column = 0; column < kColumns; column += kBlock) {
    const TileOrigin of{at.row, at.column + column};
    if (of.column >= end.n) continue;
    const float* of_block = sums + column / 8 * kSumsOfEight<E>;
    // TMA begins at 16 bytes of a row.
    if (whole && of.column % (16 / sizeof(typename E::Out)) == 0 && of.column + kBlock <= end.n) {
      if constexpr (kNarrow) {
        store_known(way, epilogue, direct.outputs, of_block, of);
      } else {
        store_floats(way, epilogue.accumulates(), of_block, of);
      }
      continue;
    }
#pragma unroll
    for (int j = 0; j < kBlock; j += kStep)
      put_columns<kStep / 8>(epilogue, direct, of_block + j / 8 * kSumsOfEight<E>,
                             {of.row, of.column + j}, end);
  }
}

/// Whether c, and what is saved, can leave by TMA.
template <class E>
bool leaves_by_tma(const GemmGpuArgs& args, const E& epilogue, std::int64_t columns) {
  return epilogue.bias.pairs && columns * sizeof(typename E::Out) % 16 == 0 &&
         aligned_to_16(args.c, args.saved);
}

/// A matrix of `rows` rows of `columns` elements; the box that one instruction moves.
template <class Element = bf16>
TensorMap matrix_map(const void* base, std::int64_t rows, std::int64_t columns, std::int64_t stride,
                     int box_rows, int box_columns = 64) {
  return tensor_map<2, Element>(
      {.base = static_cast<const Element*>(base),
       .dims = {static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows)},
       .strides = {static_cast<std::uint64_t>(stride)},
       .box = {static_cast<std::uint32_t>(box_columns), static_cast<std::uint32_t>(box_rows)}});
}

/// Of an output, whose tiles have 64 rows.
template <class E>
TensorMap out_map(const Outputs<typename E::Out>& outputs, int output, std::int64_t rows,
                  std::int64_t columns) {
  using Out = typename E::Out;
  return matrix_map<Out>(outputs.at[output], rows, columns, outputs.stride[output], 64,
                         sizeof(Out) == sizeof(bf16) ? kTileColumns<E> : kSumColumns);
}

}  // namespace trireme::cuda
