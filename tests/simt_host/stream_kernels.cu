#include "kernels/common/cuda.cuh"
#include "kernels/common/reduce.cuh"
#include "simt_host/stream_kernels.h"

namespace trireme::simt_cases {
namespace {

__global__ void add_one_kernel(float* out, const float* in, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) out[i] = in[i] + 1.0f;
}

struct SumSmem {
  float partials[3];
};
__global__ void sum_blocks_kernel(float* sums, unsigned* counter, const float* in, int count) {
  SumSmem& s = cuda::smem<SumSmem>();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const float sum = cuda::block_sum<float, 96>(i < count ? in[i] : 0.0f, s.partials);
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = sum;
    atomicAdd(counter, 1U);
  }
}

__global__ void nothing() {}

struct TileSmem {
  float x[64];
};
__global__ void broadcast_kernel(float* out, const float* row) {
  TileSmem& s = cuda::smem<TileSmem>();
  float sum = 0;
  for (int round = 0; round < 3; ++round) {
    s.x[threadIdx.x] = row[threadIdx.x];
    __syncthreads();
    for (int i = 0; i < 128; ++i) sum += s.x[i % 64];
    __syncthreads();
  }
  out[blockIdx.x * 64 + threadIdx.x] = sum + row[0];
}

}  // namespace

void add_one(float* out, const float* in, int count, cudaStream_t stream) {
  cuda::launch(add_one_kernel,
               {.grid = static_cast<unsigned>(cuda::blocks_for(count, 64)),
                .block = 64,
                .stream = stream,
                .name = "add_one"},
               out, in, count);
}

void sum_blocks(float* sums, unsigned* counter, const float* in, int count, cudaStream_t stream) {
  cuda::launch(sum_blocks_kernel,
               {.grid = static_cast<unsigned>(cuda::blocks_for(count, 96)),
                .block = 96,
                .smem_bytes = sizeof(SumSmem),
                .stream = stream,
                .name = "sum_blocks"},
               sums, counter, in, count);
}

void launch_shape(dim3 grid, dim3 block, std::size_t smem_bytes) {
  cuda::launch(nothing,
               {.grid = grid, .block = block, .smem_bytes = smem_bytes, .name = "nothing"});
}

void broadcast(float* out, const float* row, int blocks) {
  cuda::launch(broadcast_kernel,
               {.grid = static_cast<unsigned>(blocks),
                .block = 64,
                .smem_bytes = sizeof(TileSmem),
                .name = "broadcast"},
               out, row);
}

}  // namespace trireme::simt_cases
