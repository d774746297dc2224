// The table of our own kernels that run on any GPU.

#include "kernels/gemm/gemm_launch.cuh"

namespace trireme::cuda {
namespace {

bool serves(const GemmGpuArgs& args) { return args.epilogue == GemmEpilogue::kNone; }

void multiply(const GemmGpuArgs& args) {
  if (args.type == DType::kF32) {
    launch_any_layout<float>(args, store_epilogue<float, float>(args));
  } else if (args.c_type == DType::kF32) {
    launch_any_layout<bf16>(args, store_epilogue<bf16, float>(args));
  } else {
    launch_any_layout<bf16>(args, store_epilogue<bf16, bf16>(args));
  }
}

}  // namespace

const GemmGpuKernels gemm_cuda = {serves, multiply};

}  // namespace trireme::cuda
