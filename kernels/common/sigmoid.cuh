#pragma once

#include "kernels/common/cuda.cuh"

namespace trireme::cuda {

/// 1 / (1 + e^-x) within a few ulp; the division's own error is 2 ulp, and it gives 0 where e^-x is
/// beyond 2^126, as good as the 1e-38 it stands for.
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0F, 1.0F + expf(-x)); }

}  // namespace trireme::cuda
