#pragma once
// Kernels for the tests of streams, graphs and launches.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/simt_host/runtime.h"

namespace trireme::simt_cases {

/// out = in + 1, `count` elements.
void add_one(float* out, const float* in, int count, cudaStream_t stream);
/// Sums per block with shuffles, shared memory and an atomic counter; many blocks of 96 threads.
void sum_blocks(float* sums, unsigned* counter, const float* in, int count, cudaStream_t stream);
/// A kernel that does nothing, to see which shapes are refused.
void launch_shape(dim3 grid, dim3 block, std::size_t smem_bytes);
/// Reads a broadcast row in every block; each thread of a block reads all of a shared tile, twice
/// between barriers.
void broadcast(float* out, const float* row, int blocks);

}  // namespace trireme::simt_cases
