#include "kernels/common/exact_sum.cuh"
#include "kernels/common/many_tensors.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/grad_norm/grad_norm_table.h"

namespace trireme::cuda {
namespace {

// The tree of the CPU: lane l of 16 adds the squares of elements l, l + 16, ... of a row in order,
// then lanes are folded in halves. A thread has four neighbouring lanes, so that four threads share
// a row and read 64 bytes of it at once; several such reads are under way.
constexpr int kThreads = 256, kLanes = 16, kLanesPerThread = 4, kDepth = 8;
constexpr int kThreadsPerRow = kLanes / kLanesPerThread;
static_assert(kGradNormRowsPerBlock * kThreadsPerRow == kThreads);

constexpr int kWords = ExactSum::kWords;

template <bool kAligned>
__device__ __forceinline__ Vector<float, kLanesPerThread> four(const float* x) {
  if constexpr (kAligned) {
    return load<kLanesPerThread>(x);
  } else {
    return {{x[0], x[1], x[2], x[3]}};
  }
}

struct Lanes {
  double sums[kLanesPerThread];

  __device__ __forceinline__ void add(int k, float x) {
    const double value = x;
    sums[k] = fma(value, value, sums[k]);
  }
};

/// The sum of the squares of a row; the four threads of the row call with part 0 to 3.
template <bool kAligned>
__device__ __forceinline__ double squares_of(const float* row, std::int64_t columns, int part) {
  Lanes lanes{};
  const float* x = row + part * kLanesPerThread;
  std::int64_t i = 0;
#pragma unroll 1
  for (; i + kDepth * kLanes <= columns; i += kDepth * kLanes) {
    Vector<float, kLanesPerThread> values[kDepth];
#pragma unroll
    for (int d = 0; d < kDepth; ++d) values[d] = four<kAligned>(x + i + d * kLanes);
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
#pragma unroll
      for (int k = 0; k < kLanesPerThread; ++k) lanes.add(k, values[d].at[k]);
    }
  }
#pragma unroll 1
  for (; i < columns; i += kLanes) {
#pragma unroll
    for (int k = 0; k < kLanesPerThread; ++k) {
      if (i + part * kLanesPerThread + k < columns) lanes.add(k, x[i + k]);
    }
  }
  // Halves of 8 and 4 lanes are other threads', those of 2 and 1 this one's.
#pragma unroll
  for (int threads = 2; threads > 0; threads /= 2) {
#pragma unroll
    for (int k = 0; k < kLanesPerThread; ++k)
      lanes.sums[k] += __shfl_xor_sync(kAllLanes, lanes.sums[k], threads);
  }
  return (lanes.sums[0] + lanes.sums[2]) + (lanes.sums[1] + lanes.sums[3]);
}

__global__ void __launch_bounds__(kThreads, 4) squares_kernel(ManySquaresArgs args) {
  __shared__ Word words[kWords];
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread < kWords) words[thread] = 0;
  __syncthreads();
  const GradNormTensorArgs tensor =
      args.tensors[tensor_of_block(args.tensors, args.tensor_count, blockIdx.x)];
  const std::int64_t row =
      (blockIdx.x - tensor.first_block) * kGradNormRowsPerBlock + thread / kThreadsPerRow;
  // Threads beyond the last row take part in the exchange, with 0.
  const bool valid = row < tensor.rows;
  const float* x = tensor.gradient + (valid ? row : 0) * tensor.columns;
  const std::int64_t columns = valid ? tensor.columns : 0;
  const int part = thread % kThreadsPerRow;
  const bool aligned =
      tensor.columns % 4 == 0 && reinterpret_cast<std::uintptr_t>(tensor.gradient) % 16 == 0;
  const double squares =
      aligned ? squares_of<true>(x, columns, part) : squares_of<false>(x, columns, part);
  if (valid && part == 0) add_exactly(words, squares);
  __syncthreads();
  if (thread < kWords && words[thread] != 0)
    atomicAdd(reinterpret_cast<Word*>(args.words) + thread, words[thread]);
}

void squares(const ManySquaresArgs& args) {
  launch(squares_kernel,
         {.grid = static_cast<unsigned>(args.block_count),
          .block = kThreads,
          .stream = stream_of(args.exec),
          .name = "grad_norm"},
         args);
}

}  // namespace

const GradNormGpuKernels grad_norm_cuda = {squares};

}  // namespace trireme::cuda
