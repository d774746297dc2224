#include "kernels/common/gpu_kernels.h"
#include "kernels/elementwise/elementwise_table.h"
#include "kernels/gemm/gemm_gpu_table.h"

namespace trireme {

const GpuKernels& gpu_kernels() {
  static constexpr GpuKernels kCuda = {
      .elementwise = &cuda::elementwise_cuda,
      .gemm = &cuda::gemm_cuda,
  };
  return kCuda;
}

}  // namespace trireme
