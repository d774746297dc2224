// A kernel for each rule of scripts/check_sass.py, which breaks it; compiled by cuda_compile.sh.

#include <cuda_bf16.h>

#include <cstdint>

/// Stored one by one: eight accesses where one would do.
template <int kWidth>
__global__ void split_stores(__nv_bfloat16* to, const float* from) {
  const int first = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * kWidth;
  for (int i = 0; i < kWidth; ++i) to[first + i] = __float2bfloat16(from[first + i]);
}
template __global__ void split_stores<8>(__nv_bfloat16*, const float*);

__device__ void multiply(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__global__ void fence_in_a_loop(float* to, const uint32_t* from, int steps) {
  float c[4] = {};
  for (int step = 0; step < steps; ++step, from += 6) {
    multiply(c, {from[0], from[1], from[2], from[3]}, {from[4], from[5]});
    __threadfence();
  }
  for (int i = 0; i < 4; ++i) to[i] = c[i];
}

/// Which element of the array is a matter of data: it lies in memory.
__global__ void local_memory_in_a_loop(float* to, const uint32_t* from, int steps) {
  float c[4] = {};
  uint32_t kept[32] = {};
  for (int step = 0; step < steps; ++step, from += 6) {
    kept[from[0] % 32] += from[1];
    multiply(c, {kept[from[2] % 32], from[1], from[2], from[3]}, {from[4], from[5]});
  }
  for (int i = 0; i < 4; ++i) to[i] = c[i] + static_cast<float>(kept[i]);
}

/// Gives back all registers but 24, and goes on with more.
__global__ void __launch_bounds__(128, 1) registers_that_are_gone(float* to, const float* from) {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
  float values[64];
  for (int i = 0; i < 64; ++i) values[i] = from[i * 128 + threadIdx.x];
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < 64; ++i) sum = sum * values[63 - i] + values[i];
  to[threadIdx.x] = sum;
}
