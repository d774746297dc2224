// Products that are stored, accumulated or added to a residual.

#include "kernels/gemm/gemm_launch.cuh"

namespace trireme::cuda {

void multiply_and_store(const GemmGpuArgs& args) {
  if (args.type == DType::kF32) {
    launch_any_layout<float>(args, store_epilogue<float, float>(args));
  } else if (args.c_type == DType::kF32) {
    launch_any_layout<bf16>(args, store_epilogue<bf16, float>(args));
  } else {
    launch_any_layout<bf16>(args, store_epilogue<bf16, bf16>(args));
  }
}

}  // namespace trireme::cuda
