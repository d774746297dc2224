#include "kernels/common/reduce.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/cross_entropy/cross_entropy_table.h"

namespace trireme::cuda {
namespace {

// A block takes one row; rows of a small vocabulary get small blocks.
constexpr int kWideThreads = 512, kNarrowThreads = 128;
constexpr std::int64_t kNarrowColumnsMax = 4096;
constexpr int kDepth = 4;  // accesses that a thread has under way at once

/// The column of a token's target, or -1 where it stands in another part or is not counted.
__device__ __forceinline__ std::int64_t target_column(const CrossEntropyRows& rows,
                                                      std::int32_t target) {
  const std::int64_t column = target - rows.vocabulary_first;
  return target >= 0 && column >= 0 && column < rows.valid ? column : -1;
}

/// How a row is read: `head` single elements up to an aligned address, `groups` of kCount, and
/// what is left. The rows of an odd vocabulary begin anywhere.
template <int kCount>
struct RowCut {
  std::int64_t head, groups, rest;

  /// The index of single element i of `rest`: those before and after the groups.
  [[nodiscard]] __device__ __forceinline__ std::int64_t single(std::int64_t i) const {
    return i < head ? i : i + groups * kCount;
  }
};
template <int kCount, class T>
__device__ __forceinline__ RowCut<kCount> cut_of(const T* row, std::int64_t count) {
  constexpr auto kBytes = static_cast<unsigned>(sizeof(T) * kCount);
  const auto beyond = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(row) % kBytes);
  const std::int64_t to_aligned = (kBytes - beyond) % kBytes / sizeof(T);
  const std::int64_t head = min(to_aligned, count);
  const std::int64_t groups = (count - head) / kCount;
  return {head, groups, count - groups * kCount};
}

/// A maximum and the sum of exponentials relative to it, of what has been seen so far.
struct Running {
  float maximum, sum;

  /// What exponents are relative to: where all is -inf, every exponential is to be 0, not NaN.
  [[nodiscard]] static __device__ __forceinline__ float base_of(float maximum) {
    return maximum == -INFINITY ? 0.0F : maximum;
  }
  template <int kValues>
  __device__ __forceinline__ void add(const float (&x)[kValues]) {
    float next = maximum;
#pragma unroll
    for (int i = 0; i < kValues; ++i) next = fmaxf(next, x[i]);
    const float base = base_of(next);
    float part = 0;
#pragma unroll
    for (int i = 0; i < kValues; ++i) part += expf(x[i] - base);
    sum = sum * expf(maximum - base) + part;
    maximum = next;
  }
};

template <class L, int kThreads>
__global__ void __launch_bounds__(kThreads) statistics_kernel(CrossEntropyStatisticsArgs args) {
  __shared__ float maxima[kThreads / 32], sums[kThreads / 32];
  const std::int64_t t = blockIdx.x;
  constexpr int kCount = kWide<L>;
  const L* row = static_cast<const L*>(args.logits) + t * args.rows.columns;
  const RowCut cut = cut_of<kCount>(row, args.rows.valid);
  Running running{-INFINITY, 0};
  std::int64_t group = threadIdx.x;
  for (; group + (kDepth - 1) * kThreads < cut.groups; group += kDepth * kThreads) {
    float x[kDepth * kCount];
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const auto in = load<kCount>(row + cut.head + (group + d * kThreads) * kCount);
#pragma unroll
      for (int k = 0; k < kCount; ++k) x[d * kCount + k] = to_float(in.at[k]);
    }
    running.add(x);
  }
  for (; group < cut.groups; group += kThreads) {
    const auto in = load<kCount>(row + cut.head + group * kCount);
    float x[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) x[k] = to_float(in.at[k]);
    running.add(x);
  }
  if (threadIdx.x < cut.rest) {
    const float x[1] = {to_float(row[cut.single(threadIdx.x)])};
    running.add(x);
  }

  const float warp_maximum = warp_max(running.maximum);
  if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = warp_maximum;
  __syncthreads();
  float maximum = maxima[0];
#pragma unroll
  for (int warp = 1; warp < kThreads / 32; ++warp) maximum = fmaxf(maximum, maxima[warp]);
  const float base = Running::base_of(maximum);
  const float sum = block_sum<float, kThreads>(running.sum * expf(running.maximum - base), sums);
  if (threadIdx.x != 0) return;
  const std::int64_t column = target_column(args.rows, args.targets[t]);
  args.maximum[t] = maximum;
  args.sum[t] = sum;
  args.target_logit[t] = column < 0 ? 0.0F : to_float(row[column]);
}

constexpr int kTokenThreads = 256;  // of kernels in which a thread takes one token
__global__ void __launch_bounds__(kTokenThreads) merge_kernel(CrossEntropyMergeArgs args) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kTokenThreads + threadIdx.x;
  if (t >= args.tokens) return;
  const float* part = args.parts + t;
  float maximum = part[0];
  for (std::int64_t r = 1; r < args.part_count; ++r)
    maximum = fmaxf(maximum, part[3 * r * args.tokens]);
  const float base = Running::base_of(maximum);
  float sum = 0, target_logit = 0;
  for (std::int64_t r = 0; r < args.part_count; ++r, part += 3 * args.tokens) {
    sum += part[args.tokens] * expf(part[0] - base);
    target_logit += part[2 * args.tokens];
  }
  args.maximum[t] = maximum;
  args.sum[t] = sum;
  args.target_logit[t] = target_logit;
}

__global__ void __launch_bounds__(kTokenThreads) loss_kernel(CrossEntropyLossArgs args) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kTokenThreads + threadIdx.x;
  if (t >= args.tokens) return;
  const bool counted = args.targets[t] >= 0;
  const float maximum = args.maximum[t], log_sum = logf(args.sum[t]);
  args.loss[t] = counted ? maximum - args.target_logit[t] + log_sum : 0.0F;
  if (args.square == nullptr) return;
  const float lse = maximum + log_sum;
  args.square[t] = counted ? lse * lse : 0.0F;
}

template <class T, int kThreads>
__device__ __forceinline__ void zero(T* to, std::int64_t count) {
  constexpr int kCount = kWide<T>;
  const RowCut cut = cut_of<kCount>(to, count);
  Vector<T, kCount> zeros;
#pragma unroll
  for (int k = 0; k < kCount; ++k) zeros.at[k] = from_float<T>(0);
  for (std::int64_t group = threadIdx.x; group < cut.groups; group += kThreads)
    store(to + cut.head + group * kCount, zeros);
  if (threadIdx.x < cut.rest) to[cut.single(threadIdx.x)] = from_float<T>(0);
}

/// Each element is read and written by one thread, so that both may be the same memory.
template <class L, class T, int kThreads>
__global__ void __launch_bounds__(kThreads) gradient_kernel(CrossEntropyGradientArgs args) {
  constexpr int kCount = kWide<L>;
  const std::int64_t t = blockIdx.x;
  const CrossEntropyRows& rows = args.rows;
  T* out = static_cast<T*>(args.dlogits) + t * rows.columns;
  const std::int32_t target = args.targets[t];
  if (target < 0) return zero<T, kThreads>(out, rows.columns);

  const L* row = static_cast<const L*>(args.logits) + t * rows.columns;
  const std::int64_t column = target_column(rows, target);
  const float maximum = args.maximum[t], scale = *args.scale;
  float inverse = 1.0F / args.sum[t];
  if (args.z_loss != 0) inverse *= 1.0F + 2.0F * args.z_loss * (maximum + logf(args.sum[t]));
  const auto gradient = [&](float x, std::int64_t v) {
    const float p = expf(x - maximum) * inverse;
    return (v == column ? p - 1.0F : p) * scale;
  };
  auto cut = cut_of<kCount>(row, rows.valid);
  // Groups of logits are groups of the gradient where both begin alike.
  if (reinterpret_cast<std::uintptr_t>(out + cut.head) % (sizeof(T) * kCount) != 0)
    cut = {0, 0, rows.valid};
  for (std::int64_t group = threadIdx.x; group < cut.groups; group += kThreads) {
    const std::int64_t v = cut.head + group * kCount;
    const auto x = load<kCount>(row + v);
    Vector<T, kCount> d;
#pragma unroll
    for (int k = 0; k < kCount; ++k) d.at[k] = from_float<T>(gradient(to_float(x.at[k]), v + k));
    store(out + v, d);
  }
  for (std::int64_t i = threadIdx.x; i < cut.rest; i += kThreads) {
    const std::int64_t v = cut.single(i);
    out[v] = from_float<T>(gradient(to_float(row[v]), v));
  }
  zero<T, kThreads>(out + rows.valid, rows.columns - rows.valid);
}

template <class Kernel, class Args>
void launch_rows(Kernel narrow, Kernel wide, const Args& args, const char* name) {
  if (args.rows.tokens == 0) return;
  const bool small = args.rows.columns <= kNarrowColumnsMax;
  launch(small ? narrow : wide,
         {.grid = static_cast<unsigned>(args.rows.tokens),
          .block = static_cast<unsigned>(small ? kNarrowThreads : kWideThreads),
          .stream = stream_of(args.exec),
          .name = name},
         args);
}

void statistics(const CrossEntropyStatisticsArgs& args) {
  for_type(args.logits_type, [&](auto type) {
    using L = decltype(type);
    launch_rows(statistics_kernel<L, kNarrowThreads>, statistics_kernel<L, kWideThreads>, args,
                "cross_entropy_statistics");
  });
}

template <class Args>
void launch_tokens(void (*kernel)(Args), const Args& args, const char* name) {
  if (args.tokens == 0) return;
  launch(kernel,
         {.grid = static_cast<unsigned>(blocks_for(args.tokens, kTokenThreads)),
          .block = kTokenThreads,
          .stream = stream_of(args.exec),
          .name = name},
         args);
}

void merge(const CrossEntropyMergeArgs& args) {
  launch_tokens(merge_kernel, args, "cross_entropy_merge");
}

void loss(const CrossEntropyLossArgs& args) {
  launch_tokens(loss_kernel, args, "cross_entropy_loss");
}

template <class L, class T>
void launch_gradient(const CrossEntropyGradientArgs& args) {
  launch_rows(gradient_kernel<L, T, kNarrowThreads>, gradient_kernel<L, T, kWideThreads>, args,
              "cross_entropy_gradient");
}

void gradient(const CrossEntropyGradientArgs& args) {
  for_type(args.dlogits_type, [&](auto type) {
    using T = decltype(type);
    if (args.logits_type == DType::kF32) return launch_gradient<float, T>(args);
    launch_gradient<T, T>(args);
  });
}

}  // namespace

const CrossEntropyKernels cross_entropy_cuda = {statistics, merge, loss, gradient};

}  // namespace trireme::cuda
