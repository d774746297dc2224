#include "kernels/common/reduce.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/elementwise/elementwise_table.h"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 256;

/// f(first, count of kCount or 1) for all of [0, count): whole vectors by threads of a grid, the
/// rest one by one.
template <int kCount, class F>
__device__ __forceinline__ void for_each_group(std::int64_t count, F f) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (std::int64_t group = first; group < count / kCount; group += stride) f(group * kCount);
}

template <int kCount, class To, class From>
__global__ void __launch_bounds__(kThreads)
    cast_kernel(To* destination, const From* source, std::int64_t count) {
  for_each_group<kCount>(count, [&](std::int64_t i) {
    const Vector<From, kCount> in = load<kCount>(source + i);
    Vector<To, kCount> out;
#pragma unroll
    for (int k = 0; k < kCount; ++k) out.at[k] = from_float<To>(to_float(in.at[k]));
    store(destination + i, out);
  });
}

template <int kCount, class T>
__global__ void __launch_bounds__(kThreads)
    accumulate_kernel(float* destination, const T* source, std::int64_t count) {
  for_each_group<kCount>(count, [&](std::int64_t i) {
    const Vector<T, kCount> in = load<kCount>(source + i);
    Vector<float, kCount> sum = load<kCount>(destination + i);
#pragma unroll
    for (int k = 0; k < kCount; ++k) sum.at[k] += to_float(in.at[k]);
    store(destination + i, sum);
  });
}

LaunchConfig config_for(const Exec& exec, std::int64_t groups, const char* name) {
  // Enough blocks to fill any GPU; more elements are taken in turns.
  constexpr std::int64_t kBlocksMax = 16384;
  const std::int64_t blocks = blocks_for(groups, kThreads);
  return {.grid = static_cast<unsigned>(blocks < kBlocksMax ? blocks : kBlocksMax),
          .block = kThreads,
          .stream = stream_of(exec),
          .name = name};
}

template <class To, class From>
void cast_elements(const CastArgs& args) {
  constexpr int kCount = 4;  // 16 bytes of the wider type
  auto* to = static_cast<To*>(args.destination);
  const auto* from = static_cast<const From*>(args.source);
  const std::int64_t whole = aligned_to_16(to, from) ? args.count / kCount * kCount : 0;
  if (whole > 0) {
    launch(cast_kernel<kCount, To, From>, config_for(args.exec, whole / kCount, "cast"), to, from,
           whole);
  }
  if (whole < args.count) {
    launch(cast_kernel<1, To, From>, config_for(args.exec, args.count - whole, "cast"), to + whole,
           from + whole, args.count - whole);
  }
}

void cast(const CastArgs& args) {
  if (args.destination_type == args.source_type) {  // bytes, not numbers: a NaN keeps its payload
    cudaMemcpyAsync(args.destination, args.source,
                    static_cast<std::size_t>(args.count) * size_of(args.source_type),
                    cudaMemcpyDeviceToDevice, stream_of(args.exec));
  } else if (args.destination_type == DType::kBF16) {
    cast_elements<bf16, float>(args);
  } else {
    cast_elements<float, bf16>(args);
  }
}

void copy_rows(const CopyRowsArgs& args) {
  cudaMemcpy2DAsync(args.destination, args.destination_stride, args.source, args.source_stride,
                    args.row_bytes, args.rows, cudaMemcpyDeviceToDevice, stream_of(args.exec));
}

void clear(const ClearArgs& args) {
  cudaMemsetAsync(args.destination, 0, args.bytes, stream_of(args.exec));
}

void accumulate(const AccumulateArgs& args) {
  if (args.count == 0) return;
  for_type(args.source_type, [&](auto type) {
    using T = decltype(type);
    constexpr int kCount = 4;
    const auto* source = static_cast<const T*>(args.source);
    const std::int64_t whole =
        aligned_to_16(args.destination, source) ? args.count / kCount * kCount : 0;
    if (whole > 0) {
      launch(accumulate_kernel<kCount, T>, config_for(args.exec, whole / kCount, "accumulate"),
             args.destination, source, whole);
    }
    if (whole < args.count) {
      launch(accumulate_kernel<1, T>, config_for(args.exec, args.count - whole, "accumulate"),
             args.destination + whole, source + whole, args.count - whole);
    }
  });
}

constexpr int kColumnsPerBlock = 32, kTokenRows = 8;

/// One block: 32 columns; each of 8 warps sums every eighth token, then they are added in order.
template <class T>
__global__ void __launch_bounds__(kColumnsPerBlock* kTokenRows)
    column_sum_kernel(float* sum, const T* x, std::int64_t tokens, std::int64_t columns) {
  __shared__ float partials[kTokenRows][kColumnsPerBlock];
  const int lane = static_cast<int>(threadIdx.x) % kColumnsPerBlock,
            row = static_cast<int>(threadIdx.x) / kColumnsPerBlock;
  const std::int64_t column = std::int64_t{blockIdx.x} * kColumnsPerBlock + lane;
  constexpr std::int64_t kTokensPerRun = 64;  // keeps the error near that of a sum of 64
  float total = 0;
  for (std::int64_t first = row; first < tokens; first += kTokensPerRun * kTokenRows) {
    float run = 0;
    const std::int64_t end = min(first + kTokensPerRun * kTokenRows, tokens);
    for (std::int64_t t = first; t < end && column < columns; t += kTokenRows)
      run += to_float(x[t * columns + column]);
    total += run;
  }
  partials[row][lane] = total;
  __syncthreads();
  if (row != 0 || column >= columns) return;
  float result = sum[column];
#pragma unroll
  for (int r = 0; r < kTokenRows; ++r) result += partials[r][lane];
  sum[column] = result;
}

void column_sum(const ColumnSumArgs& args) {
  if (args.columns == 0) return;
  for_type(args.x_type, [&](auto type) {
    using T = decltype(type);
    launch(column_sum_kernel<T>,
           {.grid = static_cast<unsigned>(blocks_for(args.columns, kColumnsPerBlock)),
            .block = kColumnsPerBlock * kTokenRows,
            .stream = stream_of(args.exec),
            .name = "column_sum"},
           args.sum, static_cast<const T*>(args.x), args.tokens, args.columns);
  });
}

/// One warp: 32 elements are loaded at once, then every lane adds them one after another.
__global__ void __launch_bounds__(32)
    sum_in_order_kernel(double* sum, const float* x, std::int64_t count) {
  const int lane = static_cast<int>(threadIdx.x);
  double total = 0;
  for (std::int64_t first = 0; first < count; first += 32) {
    const float mine = first + lane < count ? x[first + lane] : 0;
    const int valid = static_cast<int>(min(count - first, std::int64_t{32}));
    for (int i = 0; i < valid; ++i) total += static_cast<double>(__shfl_sync(kAllLanes, mine, i));
  }
  if (lane == 0) *sum += total;
}

void sum_in_order(const SumInOrderArgs& args) {
  launch(sum_in_order_kernel,
         {.grid = 1, .block = 32, .stream = stream_of(args.exec), .name = "sum_in_order"}, args.sum,
         args.x, args.count);
}

}  // namespace

const ElementwiseKernels elementwise_cuda = {cast,       copy_rows,  clear,
                                             accumulate, column_sum, sum_in_order};

}  // namespace trireme::cuda
