#include "base/error.h"
#include "kernels/common/launch.h"

namespace trireme::cuda {

void fail_launch(const LaunchFailure& failure) {
  throw DeviceError(
      "{}: a kernel of {} x {} x {} blocks of {} threads with {} bytes of shared memory could not "
      "be started, or failed (with CUDA_LAUNCH_BLOCKING=1): {} ({}). An \"invalid device "
      "function\" "
      "or \"no kernel image\" means that this build has no code for the GPU's architecture",
      failure.name, failure.grid[0], failure.grid[1], failure.grid[2], failure.threads,
      failure.smem_bytes, failure.text, failure.error);
}

void fail_call(const char* name, const char* text, const char* error) {
  throw DeviceError(
      "{}: the CUDA runtime refused a copy or memset: {} ({}). If an earlier kernel failed, it is "
      "reported here too; CUDA_LAUNCH_BLOCKING=1 shows which",
      name, text, error);
}

}  // namespace trireme::cuda
