#pragma once
// What Hopper's main loops share around their products: a cluster's beginning
// and end, and how a warpgroup's sums leave: bf16 results through shared memory and TMA, others
// directly.

#include "kernels/common/ptx.cuh"
#include "kernels/common/ring.cuh"
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
/// A block's mbarriers are there until no other arrives on them.
template <class T>
__device__ __forceinline__ void leave_cluster() {
  if constexpr (T::kCluster > 1) ptx::cluster_sync();
}

/// Where a warpgroup's part of a tile begins in the result. An `end` has m rows and n columns.
struct TileOrigin {
  int row, column;
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

/// Takes an output into its swizzled tile in shared memory: the one output of a call, or each.
template <class E, int kOutput>
struct TileSink {
  static constexpr int kColumns = kTileColumns<E>;
  using Tile = bf16[64][kColumns];
  Tile* tiles;
  TileOrigin at;
  bool saved;  ///< whether output 1 is wanted

  template <int kOther>
  __device__ __forceinline__ void put(std::int64_t row, std::int64_t column, float2 value) const {
    if (!E::kTogether && kOther != kOutput) return;
    if (E::kTogether && kOther == 1 && !saved) return;
    constexpr int kParts = kColumns / 8, kRowsOfTurn = 8 / kParts;
    const int r = static_cast<int>(row) - at.row, c = static_cast<int>(column) - at.column;
    const bf16 pair[2] = {from_float<bf16>(value.x), from_float<bf16>(value.y)};
    Vector<std::uint32_t, 1> word;  // else its halves are stored apart
    __builtin_memcpy(word.at, pair, sizeof pair);
    bf16* to =
        &tiles[E::kTogether ? kOther : 0][r][((c / 8) ^ (r / kRowsOfTurn % kParts)) * 8 + c % 8];
    store(reinterpret_cast<std::uint32_t*>(to), word);
  }
  /// What lies beyond the result, which TMA leaves out.
  __device__ __forceinline__ void put_missing(std::int64_t row, std::int64_t column) const {
    put<E::kTogether ? 0 : kOutput>(row, column, {0.0F, 0.0F});
    if constexpr (E::kTogether) put<1>(row, column, {0.0F, 0.0F});
    if constexpr (E::kTogether && E::kOutputs > 2) put<2>(row, column, {0.0F, 0.0F});
  }
};

/// Hands kGroups<E> x 8 columns of a warpgroup's sums to the epilogue. Loads come first, all of
/// them: one behind the other they would take a round trip each. `before_use` runs beside them.
template <class E, class Sink, class End, class BeforeUse>
__device__ __forceinline__ void finish_columns(const E& epilogue, const Sink& sink,
                                               const float* sums, TileOrigin at, const End& end,
                                               BeforeUse before_use) {
  constexpr int kSums = E::kDual ? 8 : 4;  // of 8 columns
  const int lane = static_cast<int>(threadIdx.x) % 32,
            warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int first_row = at.row + warp * 16 + lane / 4, first_column = at.column + lane % 4 * 2;
  decltype(epilogue.load(0, 0)) read[kGroups<E>][2] = {};
#pragma unroll
  for (int group = 0; group < kGroups<E>; ++group) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + half * 8, column = first_column + group * 8;
      if (row < end.m && column < end.n) read[group][half] = epilogue.load(row, column);
    }
  }
  before_use();
#pragma unroll
  for (int group = 0; group < kGroups<E>; ++group, sums += kSums) {
    const int column = first_column + group * 8;
    const bool exists = column < end.n;
    const auto state = epilogue.column(exists ? column : 0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + half * 8;
      if (!exists || row >= end.m) {
        sink.put_missing(row, column);
      } else if constexpr (E::kDual) {
        epilogue(sink, row, column, state, read[group][half], {sums[half * 2], sums[half * 2 + 1]},
                 {sums[half * 2 + 4], sums[half * 2 + 5]});
      } else {
        epilogue(sink, row, column, state, read[group][half], {sums[half * 2], sums[half * 2 + 1]});
      }
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
template <int kOutput, class E, class End>
__device__ __forceinline__ void store_block(const OutWay& way, const E& epilogue,
                                            const DirectSink<bf16>& direct, const float* sums,
                                            TileOrigin at, const End& end) {
  constexpr int kSums = E::kDual ? 8 : 4;  // of 8 columns
  using Sink = TileSink<E, kOutput>;
  static_assert((E::kTogether ? E::kOutputs : 2) * sizeof(typename Sink::Tile) <= sizeof(OutTiles));
  const bool elected = threadIdx.x % 128 == 0;
  const auto free_tiles = [&] {  // their last stores have read them
    if (elected) ptx::bulk_wait_read<E::kTogether ? 0 : 1>();
    ptx::barrier_sync(1 + way.consumer, 128);
  };
  const Sink sink{reinterpret_cast<typename Sink::Tile*>(way.tiles) + way.buffer, at,
                  direct.outputs.at[1] != nullptr};
  if constexpr (!E::kTogether) way.buffer ^= 1;
#pragma unroll
  for (int j = 0; j < kTileColumns<E> / 8; j += kGroups<E>) {
    finish_columns(epilogue, sink, sums + j * kSums, {at.row, at.column + j * 8}, end, [&] {
      if (j == 0) free_tiles();
    });
  }
  ptx::fence_proxy_async_shared();
  ptx::barrier_sync(1 + way.consumer, 128);
  if (!elected) return;
#pragma unroll
  for (int output = 0; output < (E::kTogether ? E::kOutputs : 1); ++output) {
    const int of = E::kTogether ? output : kOutput;
    if (direct.outputs.at[of] != nullptr)
      ptx::tma_store_2d(way.maps[of], at.column, at.row, sink.tiles[output]);
  }
  ptx::bulk_commit();
}

/// The same for all outputs.
template <class E, class End>
__device__ __forceinline__ void store_blocks(const OutWay& way, const E& epilogue,
                                             const DirectSink<bf16>& direct, const float* sums,
                                             TileOrigin at, const End& end) {
  store_block<0>(way, epilogue, direct, sums, at, end);
  if constexpr (E::kOutputs > 1 && !E::kTogether) {
    if (direct.outputs.at[1] != nullptr) store_block<1>(way, epilogue, direct, sums, at, end);
  }
  if constexpr (E::kOutputs > 2 && !E::kTogether) {
    if (direct.outputs.at[2] != nullptr) store_block<2>(way, epilogue, direct, sums, at, end);
  }
}

/// The epilogue of which the compiler knows whether all moves in whole pairs.
template <class E>
__device__ __forceinline__ E in_pairs(E epilogue, bool pairs) {
  epilogue.bias.pairs = pairs;
  return epilogue;
}

/// A matrix of `rows` rows of `columns` elements; the box that one instruction moves.
inline TensorMap matrix_map(const void* base, std::int64_t rows, std::int64_t columns,
                            std::int64_t stride, int box_rows, int box_columns = 64) {
  return tensor_map<2>(
      {.base = static_cast<const bf16*>(base),
       .dims = {static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows)},
       .strides = {static_cast<std::uint64_t>(stride)},
       .box = {static_cast<std::uint32_t>(box_columns), static_cast<std::uint32_t>(box_rows)}});
}

}  // namespace trireme::cuda
