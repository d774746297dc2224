#include "kernels/common/gpu_kernels.h"

namespace trireme {

const GpuKernels& gpu_kernels() {
  static constexpr GpuKernels kNone;
  return kNone;
}

}  // namespace trireme
