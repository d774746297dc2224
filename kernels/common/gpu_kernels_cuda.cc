#include "kernels/common/gpu_kernels.h"
#include "kernels/elementwise/elementwise_table.h"

namespace trireme {

const GpuKernels& gpu_kernels() {
  static constexpr GpuKernels kCuda = {
      .elementwise = &cuda::elementwise_cuda,
  };
  return kCuda;
}

}  // namespace trireme
