// Attention of single tokens over a cache in pages: a block for each token and query head, which
// goes through the keys in tiles with a running maximum.

#include "kernels/attention/attention_cuda.h"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vector.cuh"

namespace trireme::cuda::attention {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32, kKeys = 128;
constexpr float kLog2E = 1.44269504F;

/// Of key j of the token's sequence.
__device__ __forceinline__ std::int64_t row_of_key(const std::int32_t* pages, int page, int j) {
  return std::int64_t{pages[j / page]} * page + j % page;
}

/// Of heads of up to kHeadDimMax dims.
template <class T, int kHeadDimMax>
__global__ void __launch_bounds__(kThreads)
    cached_kernel(const __grid_constant__ AttentionCachedArgs args) {
  __shared__ float query[kHeadDimMax], scores[kKeys];
  constexpr int kPerThread = kHeadDimMax / kThreads;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const std::int64_t row = blockIdx.x, head = blockIdx.y;
  const std::int64_t kv_head = head / (args.heads / args.kv_heads);
  const int head_dim = static_cast<int>(args.head_dim),
            value_dim = static_cast<int>(args.value_dim), page = static_cast<int>(args.page);
  const std::int32_t* pages = args.pages + args.sequence[row] * args.pages_stride;
  const T* q = static_cast<const T*>(args.q.data) + row * args.q.stride + head * head_dim;
  const T* keys = static_cast<const T*>(args.k.data) + kv_head * head_dim;
  const T* values = static_cast<const T*>(args.v.data) + kv_head * value_dim;
  for (int d = thread; d < head_dim; d += kThreads) query[d] = to_float(q[d]) * args.scale * kLog2E;
  __syncthreads();
  const int position = args.position[row], count = position + 1;
  float maximum = -INFINITY, sum = 0, o[kPerThread] = {};
  for (int first = max(0, position - args.reach); first < count; first += kKeys) {
    const int tile = min(kKeys, count - first);
    for (int j = warp; j < tile; j += kWarps) {
      const T* key = keys + row_of_key(pages, page, first + j) * args.k.stride;
      float dot = 0;
      for (int d = lane; d < head_dim; d += 32) dot = fmaf(to_float(key[d]), query[d], dot);
      dot = warp_sum(dot);
      if (lane == 0) scores[j] = dot;
    }
    __syncthreads();
    // Every warp finds the maximum and the sum for itself.
    float of_lane[kKeys / 32], largest = maximum, part = 0;
#pragma unroll
    for (int i = 0; i < kKeys / 32; ++i) {
      const int j = i * 32 + lane;
      of_lane[i] = j < tile ? scores[j] : -INFINITY;
      largest = fmaxf(largest, of_lane[i]);
    }
    largest = warp_max(largest);
#pragma unroll
    for (int i = 0; i < kKeys / 32; ++i) {
      of_lane[i] = exp2f(of_lane[i] - largest);
      part += of_lane[i];
    }
    const float factor = exp2f(maximum - largest);
    sum = sum * factor + warp_sum(part);
    maximum = largest;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kKeys / 32; ++i) {
      if (i % kWarps == warp) scores[i * 32 + lane] = of_lane[i];
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < kPerThread; ++e) {
      const int d = e * kThreads + thread;
      if (d >= value_dim) break;
      float total = o[e] * factor;
      for (int j = 0; j < tile; ++j) {
        const T* value = values + row_of_key(pages, page, first + j) * args.v.stride;
        total = fmaf(scores[j], to_float(value[d]), total);
      }
      o[e] = total;
    }
    __syncthreads();
  }
  T* out = static_cast<T*>(args.o.data) + row * args.o.stride + head * value_dim;
#pragma unroll
  for (int e = 0; e < kPerThread; ++e) {
    const int d = e * kThreads + thread;
    if (d < value_dim) out[d] = from_float<T>(o[e] / sum);
  }
  if (args.lse != nullptr && thread == 0)
    args.lse[row * args.heads + head] = maximum / kLog2E + logf(sum);
}

}  // namespace

void cached(const AttentionCachedArgs& args) {
  for_type(args.type, [&](auto type) {
    using T = decltype(type);
    launch(args.head_dim <= 256 ? cached_kernel<T, 256> : cached_kernel<T, 1024>,
           {.grid = dim3(static_cast<unsigned>(args.rows), static_cast<unsigned>(args.heads)),
            .block = kThreads,
            .stream = stream_of(args.exec),
            .name = "attention_cached"},
           args);
  });
}

}  // namespace trireme::cuda::attention
