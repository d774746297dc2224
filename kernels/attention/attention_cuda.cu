// The GPU's table of attention: which kernel a head size gets, and the ops on single rows.

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_mask.cuh"
#include "kernels/common/vector.cuh"

namespace trireme::cuda {
namespace attention {
namespace {

constexpr int kRowThreads = 256;

// ---- documents ----

/// A warp: one tile of queries of one sequence.
__global__ void __launch_bounds__(kRowThreads)
    tile_first_key_kernel(const __grid_constant__ AttentionGpuBackward args, int tiles, int size) {
  const std::int64_t work =
      std::int64_t{blockIdx.x} * (kRowThreads / 32) + static_cast<int>(threadIdx.x / 32);
  const std::int64_t sequence = work / tiles;
  if (sequence >= args.shape.sequences) return;
  const int number = static_cast<int>(work % tiles);
  const Tile tile = tile_at(args.q_ranges, number, size);
  const QueryBounds bounds = query_bounds(
      tile, 0, size, args.first_key + sequence * args.shape.q_tokens + tile.index, args.reach);
  if (threadIdx.x % 32 != 0) return;
  std::int32_t* to = args.tile_first_key + sequence * args.tile_stride + 2 * number;
  to[0] = bounds.first_key_min;
  to[1] = bounds.first_key_max;
}

// ---- rows of heads ----

/// `lanes` lanes take the row of one token and head; all of them call f(row, lane), row -1: none.
struct RowGroups {
  std::int64_t rows;
  int lanes;
};
__device__ __forceinline__ std::int64_t row_of(const RowGroups& groups) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
  return thread / groups.lanes;
}

template <int kCount, class T>
__global__ void __launch_bounds__(kRowThreads)
    delta_kernel(AttentionRowsArgs args, RowGroups groups) {
  const std::int64_t row = row_of(groups);
  const int lane = static_cast<int>(threadIdx.x) % groups.lanes,
            head_dim = static_cast<int>(args.head_dim);
  float sum = 0;
  if (row < groups.rows) {
    const std::int64_t token = row / args.heads, first = row % args.heads * args.head_dim;
    const T* o = static_cast<const T*>(args.o2.data) + token * args.o2.stride + first;
    const T* d_o = static_cast<const T*>(args.d_o.data) + token * args.d_o.stride + first;
    for (int d = lane * kCount; d < head_dim; d += groups.lanes * kCount) {
      const Vector<T, kCount> x = load<kCount>(o + d), y = load<kCount>(d_o + d);
#pragma unroll
      for (int e = 0; e < kCount; ++e) sum = fmaf(to_float(x.at[e]), to_float(y.at[e]), sum);
    }
  }
  for (int offset = groups.lanes / 2; offset > 0; offset /= 2)
    sum += __shfl_xor_sync(kAllLanes, sum, offset);
  if (lane == 0 && row < groups.rows) args.delta[row] = sum;
}

template <int kCount, class T>
__global__ void __launch_bounds__(kRowThreads)
    merge_kernel(AttentionRowsArgs args, RowGroups groups) {
  const std::int64_t row = row_of(groups);
  const int lane = static_cast<int>(threadIdx.x) % groups.lanes,
            head_dim = static_cast<int>(args.head_dim);
  const bool exists = row < groups.rows;
  // The lane that writes lse is the one that reads it.
  float lse = 0, lse2 = 0;
  if (exists && lane == 0) {
    lse = args.lse[row];
    lse2 = args.lse2[row];
  }
  lse = __shfl_sync(kAllLanes, lse, 0, groups.lanes);
  lse2 = __shfl_sync(kAllLanes, lse2, 0, groups.lanes);
  if (!exists) return;
  const float largest = fmaxf(lse, lse2);
  // Two empty parts: nothing changes.
  const float both =
      largest == -INFINITY ? largest : largest + logf(expf(lse - largest) + expf(lse2 - largest));
  const float weight = largest == -INFINITY ? 1 : expf(lse - both),
              weight2 = largest == -INFINITY ? 0 : expf(lse2 - both);
  const std::int64_t token = row / args.heads, first = row % args.heads * args.head_dim;
  T* o = static_cast<T*>(args.o.data) + token * args.o.stride + first;
  const T* o2 = static_cast<const T*>(args.o2.data) + token * args.o2.stride + first;
  for (int d = lane * kCount; d < head_dim; d += groups.lanes * kCount) {
    Vector<T, kCount> x = load<kCount>(o + d);
    const Vector<T, kCount> y = load<kCount>(o2 + d);
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      x.at[e] = from_float<T>(fmaf(weight, to_float(x.at[e]), weight2 * to_float(y.at[e])));
    }
    store(o + d, x);
  }
  if (lane == 0) args.lse[row] = both;
}

template <int kCount, class T>
__global__ void __launch_bounds__(kRowThreads)
    sinks_kernel(AttentionSinksArgs args, RowGroups groups) {
  const std::int64_t row = row_of(groups);
  const int lane = static_cast<int>(threadIdx.x) % groups.lanes,
            head_dim = static_cast<int>(args.head_dim);
  const bool exists = row < groups.rows;
  // The lane that writes lse is the one that reads it.
  float lse = exists && lane == 0 ? args.joined_lse[row] : 0.0F;
  lse = __shfl_sync(kAllLanes, lse, 0, groups.lanes);
  if (!exists) return;
  const std::int64_t token = row / args.heads, head = row % args.heads;
  const float sink = to_float(static_cast<const T*>(args.sink)[head]);
  const float larger = lse < sink ? sink : lse;
  const float e = expf(lse - larger), sum = e + expf(sink - larger), weight = e / sum;
  T* o = static_cast<T*>(args.o.data) + token * args.o.stride + head * head_dim;
  for (int d = lane * kCount; d < head_dim; d += groups.lanes * kCount) {
    Vector<T, kCount> x = load<kCount>(o + d);
#pragma unroll
    for (int i = 0; i < kCount; ++i) x.at[i] = from_float<T>(to_float(x.at[i]) * weight);
    store(o + d, x);
  }
  if (lane == 0) args.joined_lse[row] = larger + logf(sum);
}

template <class T>
__global__ void __launch_bounds__(kRowThreads) sink_terms_kernel(AttentionSinksArgs args) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
  if (i >= args.tokens * args.heads) return;
  const float sink = to_float(static_cast<const T*>(args.sink)[i % args.heads]);
  args.terms[i] = -(expf(sink - args.lse[i]) * args.delta[i]);
}

/// Vectors of 16 bytes where all rows allow it, else single elements.
template <class T, class Args, class A, class B, class Wide, class Narrow>
void launch_rows(const Args& args, const AttentionHeads<A>& a, const AttentionHeads<B>& b,
                 const char* name, Wide wide, Narrow narrow) {
  const std::int64_t rows = args.tokens * args.heads;
  if (rows == 0 || args.head_dim == 0) return;
  const bool vectors =
      aligned_to_16(static_cast<const T*>(a.data), static_cast<const T*>(b.data)) &&
      a.stride % kWide<T> == 0 && b.stride % kWide<T> == 0 && args.head_dim % kWide<T> == 0;
  const std::int64_t accesses = vectors ? args.head_dim / kWide<T> : args.head_dim;
  int lanes = 1;
  while (lanes < accesses && lanes < 32) lanes *= 2;
  launch(vectors ? wide : narrow,
         {.grid = static_cast<unsigned>(blocks_for(rows * lanes, kRowThreads)),
          .block = kRowThreads,
          .stream = stream_of(args.exec),
          .name = name},
         args, RowGroups{rows, lanes});
}

void delta(const AttentionRowsArgs& args) {
  for_type(args.type, [&](auto type) {
    using T = decltype(type);
    launch_rows<T>(args, args.o2, args.d_o, "attention_delta", delta_kernel<kWide<T>, T>,
                   delta_kernel<1, T>);
  });
}

void merge(const AttentionRowsArgs& args) {
  for_type(args.type, [&](auto type) {
    using T = decltype(type);
    launch_rows<T>(args, args.o, args.o2, "attention_merge", merge_kernel<kWide<T>, T>,
                   merge_kernel<1, T>);
  });
}

void sinks(const AttentionSinksArgs& args) {
  for_type(args.type, [&](auto type) {
    using T = decltype(type);
    launch_rows<T>(args, args.o, args.o, "attention_sinks", sinks_kernel<kWide<T>, T>,
                   sinks_kernel<1, T>);
  });
}

void sink_terms(const AttentionSinksArgs& args) {
  for_type(args.type, [&](auto type) {
    launch(sink_terms_kernel<decltype(type)>,
           {.grid = static_cast<unsigned>(blocks_for(args.tokens * args.heads, kRowThreads)),
            .block = kRowThreads,
            .stream = stream_of(args.exec),
            .name = "attention_sink_terms"},
           args);
  });
}

// ---- head sizes ----

template <class Args>
struct ByHeadSize {
  using Function = void (*)(const Args&);
  Function f32, d32, d64, d80, d96, d128, d192_v128, d256;
};
/// That of the smallest compiled size that holds the heads.
template <class Args>
void for_head_size(const Args& args, const ByHeadSize<Args>& by) {
  const std::int64_t d = args.shape.head_dim;
  if (args.shape.type == DType::kF32) return by.f32(args);
  if (d <= 32) return by.d32(args);
  if (d <= 64) return by.d64(args);
  if (d <= 80) return by.d80(args);
  if (d <= 96) return by.d96(args);
  if (d <= 128) return by.d128(args);
  (d <= 192 && args.shape.value_dim <= 128 ? by.d192_v128 : by.d256)(args);
}

void forward(const AttentionGpuForward& args) {
  for_head_size<AttentionGpuForward>(
      args, {[](const AttentionGpuForward& of) { forward_f32(of, nullptr); }, forward_bf16<32, 32>,
             forward_bf16<64, 64>, forward_bf16<80, 80>, forward_bf16<96, 96>,
             forward_bf16<128, 128>, forward_bf16<192, 128>, forward_bf16<256, 256>});
}
void backward(const AttentionGpuBackward& args) {
  for_head_size<AttentionGpuBackward>(
      args,
      {[](const AttentionGpuBackward& of) { backward_f32(of, nullptr); }, backward_bf16<32, 32>,
       backward_bf16<64, 64>, backward_bf16<80, 80>, backward_bf16<96, 96>, backward_bf16<128, 128>,
       backward_bf16<192, 128>, backward_bf16<256, 256>});
}

void forward_dropped(const AttentionGpuForward& args, const AttentionDropping& dropping) {
  const std::int64_t d = args.shape.head_dim;
  if (args.shape.type == DType::kF32) return forward_f32(args, &dropping);
  (d <= 64    ? forward_dropping<64>
   : d <= 128 ? forward_dropping<128>
              : forward_dropping<256>)(args, dropping);
}
void backward_dropped(const AttentionGpuBackward& args, const AttentionDropping& dropping) {
  const std::int64_t d = args.shape.head_dim;
  if (args.shape.type == DType::kF32) return backward_f32(args, &dropping);
  (d <= 64    ? backward_dropping<64>
   : d <= 128 ? backward_dropping<128>
              : backward_dropping<256>)(args, dropping);
}

}  // namespace

void find_tile_first_keys(const AttentionGpuBackward& args, int tile_size) {
  if (args.tile_first_key == nullptr) return;
  const int tiles = tile_count(args.q_ranges, tile_size);
  launch(tile_first_key_kernel,
         {.grid = static_cast<unsigned>(blocks_for(args.shape.sequences * tiles, kRowThreads / 32)),
          .block = kRowThreads,
          .stream = stream_of(args.exec),
          .name = "attention_backward"},
         args, tiles, tile_size);
}

std::size_t smem_bytes_of_block() {
  int device = 0, bytes = 0;
  check_call("attention_backward", cudaGetDevice(&device));
  check_call("attention_backward",
             cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return static_cast<std::size_t>(bytes);
}

}  // namespace attention

const AttentionGpuKernels attention_cuda = {attention::forward,         attention::backward,
                                            attention::forward_dropped, attention::backward_dropped,
                                            attention::cached,          attention::merge,
                                            attention::delta,           attention::sinks,
                                            attention::sink_terms,      attention::transpose_lse,
                                            attention::add_heads,       attention::round_heads};

}  // namespace trireme::cuda
