// The table of our own kernels that run on any GPU.

#include "kernels/gemm/gemm_launch.cuh"

namespace trireme::cuda {
namespace {

void multiply(const GemmGpuArgs& args) {
  switch (args.epilogue) {
    case GemmEpilogue::kNone:
    case GemmEpilogue::kAddResidual:
      return multiply_and_store(args);
    case GemmEpilogue::kGelu:
      return multiply_and_gelu(args);
    case GemmEpilogue::kGeluBackward:
      return multiply_and_gelu_backward(args);
    case GemmEpilogue::kSwiglu:
      return multiply_and_swiglu(args);
    case GemmEpilogue::kSwigluBackward:
      return multiply_and_swiglu_backward(args);
    case GemmEpilogue::kGeglu:
    case GemmEpilogue::kGegluBackward:
      break;  // has_epilogue: the op follows
  }
}

}  // namespace

const GemmGpuKernels gemm_cuda = {has_epilogue, multiply};

}  // namespace trireme::cuda
