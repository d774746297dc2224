#pragma once
// What FlashAttention-2 calls of PyTorch's.
#include "harness.h"

#define C10_CUDA_CHECK(call) foreign::check(call)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() foreign::check(cudaGetLastError())
