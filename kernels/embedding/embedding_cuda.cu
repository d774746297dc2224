#include "kernels/common/gpu_scratch.h"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/embedding/embedding_table.h"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

/// Of a warp: some columns of a token's row. Neighbours take neighbours: rows are read whole.
struct Share {
  std::int64_t token, column;
};
__device__ __forceinline__ Share share_of_warp(std::int64_t columns_per_warp,
                                               std::int64_t channels) {
  const std::int64_t unit = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const std::int64_t per_token = (channels + columns_per_warp - 1) / columns_per_warp;
  return {unit / per_token, unit % per_token * columns_per_warp};
}

template <class Kernel, class Args>
void launch_shares(Kernel kernel, const Args& args, std::int64_t columns_per_warp,
                   const char* name) {
  const std::int64_t units = args.tokens * blocks_for(args.channels, columns_per_warp);
  launch(kernel,
         {.grid = static_cast<unsigned>(blocks_for(units, kWarps)),
          .block = kThreads,
          .stream = stream_of(args.exec),
          .name = name},
         args);
}

// ---- forward ----

constexpr int kForwardDepth = 4;  // accesses that a thread has under way at once

template <class T, int kCount>
__global__ void __launch_bounds__(kThreads) forward_kernel(EmbeddingForwardArgs args) {
  const auto [t, first] = share_of_warp(32 * kCount * kForwardDepth, args.channels);
  if (t >= args.tokens) return;
  const std::int64_t id = args.ids[t];
  const std::int64_t position = args.positions == nullptr ? 0 : args.positions[t];
  const bool valid = id >= 0 && id < args.vocabulary && position >= 0 &&
                     (args.positions == nullptr || position < args.position_rows);
  const std::int64_t index = id - args.first_row;
  const bool held = valid && index >= 0 && index < args.rows;
  const T* row = static_cast<const T*>(args.table) + index * args.channels;
  const T* other = static_cast<const T*>(args.position_table) + position * args.channels;
  T* out = static_cast<T*>(args.out) + t * args.channels;
  const std::int64_t lane_column = first + threadIdx.x % 32 * kCount;
  Vector<T, kCount> values[kForwardDepth];
#pragma unroll
  for (int d = 0; d < kForwardDepth; ++d) {
    const std::int64_t column = lane_column + d * 32 * kCount;
    if (held && column < args.channels) values[d] = load<kCount>(row + column);
  }
#pragma unroll
  for (int d = 0; d < kForwardDepth; ++d) {
    const std::int64_t column = lane_column + d * 32 * kCount;
    if (column >= args.channels) break;
    if (!held) {
      const T all = from_float<T>(valid ? 0.0F : NAN);
#pragma unroll
      for (int k = 0; k < kCount; ++k) values[d].at[k] = all;
    } else if (args.positions != nullptr) {
      const auto added = load<kCount>(other + column);
#pragma unroll
      for (int k = 0; k < kCount; ++k)
        values[d].at[k] = from_float<T>(to_float(values[d].at[k]) + to_float(added.at[k]));
    }
    store(out + column, values[d]);
  }
}

void forward(const EmbeddingForwardArgs& args) {
  for_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kCount = kWide<T>;
    const bool wide = args.channels % kCount == 0 && aligned_to_16(args.out, args.table) &&
                      reinterpret_cast<std::uintptr_t>(args.position_table) % 16 == 0;
    launch_shares(wide ? forward_kernel<T, kCount> : forward_kernel<T, 1>, args,
                  32 * kForwardDepth * (wide ? kCount : 1), "embedding_forward");
  });
}

// ---- backward ----
// The tokens of each row are brought together by counting: how many a row has, where its list
// begins, the list in the order in which atomics came, and last each token's rank among those of
// its row, which restores their order. Then one warp for some columns of a row adds them up in
// ascending order: dout is read once and only the rows that are hit are touched. Where a list
// begins is up to chance, what it holds is not.

/// What stands in scratch memory, of all tokens but for the first two.
struct Lists {
  std::int32_t* count;      ///< [V] tokens of a row; then one more: of all rows that have a list
  std::int32_t* begin;      ///< [V] of a row's list
  std::int32_t* arrival;    ///< of a token among those of its row; -1 for an id in none
  std::int32_t* arrived;    ///< the lists by arrival
  std::int32_t* ascending;  ///< the lists in ascending order
  /// Of the first token of a row its list, of others nothing.
  struct List {
    std::int32_t begin, count;
  } * list;
};

std::size_t backward_scratch_bytes(std::int64_t tokens, std::int64_t rows) {
  return static_cast<std::size_t>(gpu_scratch::embedding_backward_bytes(tokens, rows));
}

Lists lists_of(const EmbeddingBackwardArgs& args) {
  auto* at = reinterpret_cast<std::int32_t*>(args.scratch);
  const auto take = [&](std::int64_t count) {
    std::int32_t* taken = at;
    at += count;
    return taken;
  };
  Lists lists{};
  lists.list = reinterpret_cast<Lists::List*>(take(2 * args.tokens));
  lists.count = take(args.rows + 1);
  lists.begin = take(args.rows);
  lists.arrival = take(args.tokens);
  lists.arrived = take(args.tokens);
  lists.ascending = take(args.tokens);
  return lists;
}

__device__ __forceinline__ std::int64_t thread_of_grid() {
  return std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
}

/// Outside [0, rows) where the token's id stands in another part of the vocabulary.
__device__ __forceinline__ std::int64_t row_of(const EmbeddingBackwardArgs& args, std::int64_t t) {
  return args.ids[t] - args.first_row;
}

__global__ void __launch_bounds__(kThreads) count_kernel(EmbeddingBackwardArgs args, Lists lists) {
  const std::int64_t t = thread_of_grid();
  if (t >= args.tokens) return;
  const std::int64_t row = row_of(args, t);
  lists.arrival[t] = row >= 0 && row < args.rows ? atomicAdd(&lists.count[row], 1) : -1;
}

__global__ void __launch_bounds__(kThreads) begin_kernel(EmbeddingBackwardArgs args, Lists lists) {
  const std::int64_t row = thread_of_grid();
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const std::int32_t count = row < args.rows ? lists.count[row] : 0;
  std::int32_t end = count;  // of this row among those of the warp
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::int32_t before = __shfl_up_sync(kAllLanes, end, distance);
    if (lane >= distance) end += before;
  }
  std::int32_t warp_begin = 0;
  if (lane == 31 && end > 0) warp_begin = atomicAdd(&lists.count[args.rows], end);
  warp_begin = __shfl_sync(kAllLanes, warp_begin, 31);
  if (row < args.rows) lists.begin[row] = warp_begin + end - count;
}

__global__ void __launch_bounds__(kThreads)
    arrived_kernel(EmbeddingBackwardArgs args, Lists lists) {
  const std::int64_t t = thread_of_grid();
  if (t >= args.tokens || lists.arrival[t] < 0) return;
  lists.arrived[lists.begin[row_of(args, t)] + lists.arrival[t]] = static_cast<std::int32_t>(t);
}

/// A token counts those of its row before it. For a row of n tokens that is n^2 comparisons by n
/// threads; adding its n gradients one after another takes longer.
__global__ void __launch_bounds__(kThreads)
    ascending_kernel(EmbeddingBackwardArgs args, Lists lists) {
  const std::int64_t t = thread_of_grid();
  if (t >= args.tokens) return;
  lists.list[t] = {0, 0};
  if (lists.arrival[t] < 0) return;
  const std::int64_t row = row_of(args, t);
  const std::int32_t begin = lists.begin[row], count = lists.count[row];
  std::int32_t rank = 0;
#pragma unroll 4
  for (std::int32_t i = 0; i < count; ++i) rank += lists.arrived[begin + i] < t ? 1 : 0;
  lists.ascending[begin + rank] = static_cast<std::int32_t>(t);
  if (rank == 0) lists.list[t] = {begin, count};
}

/// Gradients that a thread has under way at once: a row that is hit often is bound by how long they
/// take. Most rows are hit once; for those there must be many warps.
constexpr int kBackwardDepth = 8;
template <class T>
inline constexpr int kBackwardBlocks = sizeof(T) == 2 ? 2 : 3;  // of a multiprocessor

template <class T, int kCount>
__global__ void __launch_bounds__(kThreads, kBackwardBlocks<T>)
    add_kernel(EmbeddingBackwardArgs args, Lists lists) {
  constexpr int kDepth = kBackwardDepth, kSums = kCount < 4 ? kCount : 4;
  const auto [t, first] = share_of_warp(32 * kCount, args.channels);
  if (t >= args.tokens) return;
  const Lists::List list = lists.list[t];
  const std::int64_t index = row_of(args, t);
  if (list.count == 0) return;
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t column = first + lane * kCount;
  const bool valid = column < args.channels;
  const T* dout = static_cast<const T*>(args.dout) + column;
  float* row = args.dtable + index * args.channels + column;
  Vector<float, kSums> sums[kCount / kSums] = {};
#pragma unroll
  for (int s = 0; s < kCount / kSums; ++s) {
    if (valid) sums[s] = load<kSums>(row + s * kSums);
  }
  // The first of the list is t itself, so that a row that is hit once waits for no list.
  const auto token_of_lane = [&](std::int32_t begin) {
    const std::int32_t i = begin + lane;
    if (i == 0 || lane >= kDepth || i >= list.count) return static_cast<std::int32_t>(t);
    return lists.ascending[list.begin + i];
  };
  std::int32_t tokens = token_of_lane(0);
#pragma unroll 1
  for (std::int32_t begin = 0; begin < list.count; begin += kDepth) {
    const std::int32_t next = token_of_lane(begin + kDepth);
    Vector<T, kCount> d[kDepth];
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const std::int64_t token = __shfl_sync(kAllLanes, tokens, i);
      if (valid && begin + i < list.count) d[i] = load<kCount>(dout + token * args.channels);
    }
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      if (!valid || begin + i >= list.count) continue;
#pragma unroll
      for (int k = 0; k < kCount; ++k) sums[k / kSums].at[k % kSums] += to_float(d[i].at[k]);
    }
    tokens = next;
  }
#pragma unroll
  for (int s = 0; s < kCount / kSums; ++s) {
    if (valid) store(row + s * kSums, sums[s]);
  }
}

void backward(const EmbeddingBackwardArgs& args) {
  const Lists lists = lists_of(args);
  const auto over = [&](std::int64_t items) {
    return LaunchConfig{.grid = static_cast<unsigned>(blocks_for(items, kThreads)),
                        .block = kThreads,
                        .stream = stream_of(args.exec),
                        .name = "embedding_backward"};
  };
  check_call("embedding_backward",
             cudaMemsetAsync(lists.count, 0,
                             static_cast<std::size_t>(args.rows + 1) * sizeof(std::int32_t),
                             stream_of(args.exec)));
  launch(count_kernel, over(args.tokens), args, lists);
  launch(begin_kernel, over(args.rows), args, lists);
  launch(arrived_kernel, over(args.tokens), args, lists);
  launch(ascending_kernel, over(args.tokens), args, lists);
  for_type(args.dout_type, [&](auto type) {
    using T = decltype(type);
    constexpr int kCount = kWide<T>;
    const bool wide =
        args.channels % kCount == 0 && aligned_to_16(args.dtable, static_cast<const T*>(args.dout));
    const auto kernel = wide ? add_kernel<T, kCount> : add_kernel<T, 1>;
    const std::int64_t columns_per_warp = 32 * (wide ? kCount : 1);
    const std::int64_t units = args.tokens * blocks_for(args.channels, columns_per_warp);
    launch(kernel, over(units * 32), args, lists);
  });
}

}  // namespace

const EmbeddingKernels embedding_cuda = {forward, backward, backward_scratch_bytes};

}  // namespace trireme::cuda
