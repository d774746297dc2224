#include "kernels/common/gpu_kernels.h"
#include "kernels/cross_entropy/cross_entropy_table.h"
#include "kernels/elementwise/elementwise_table.h"
#include "kernels/gelu/gelu_table.h"
#include "kernels/gemm/gemm_gpu_table.h"
#include "kernels/swiglu/swiglu_table.h"

namespace trireme {

const GpuKernels& gpu_kernels() {
  static constexpr GpuKernels kCuda = {
      .cross_entropy = &cuda::cross_entropy_cuda,
      .elementwise = &cuda::elementwise_cuda,
      .gelu = &cuda::gelu_cuda,
      .gemm = &cuda::gemm_cuda,
      .swiglu = &cuda::swiglu_cuda,
  };
  return kCuda;
}

}  // namespace trireme
