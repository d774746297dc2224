// Hopper's fp8 products that end with an activation or its gradient.

#include "kernels/gemm/gemm_fp8_launch.cuh"

namespace trireme::cuda {

void fp8_and_activation(const GemmQuantizedGpuArgs& args) {
  const GemmGpuArgs& product = args.product;
  switch (product.epilogue) {
    case GemmEpilogue::kGelu:
      if (sums_of(args) == Fp8Sums::kAtEnd) {
        return launch_fp8<Fp8Sums::kAtEnd, Fp8::kE4M3, Fp8::kE4M3>(args,
                                                                   gelu_epilogue<bf16>(product));
      }
      return launch_fp8<Fp8Sums::kByTile, Fp8::kE4M3, Fp8::kE4M3>(args,
                                                                  gelu_epilogue<bf16>(product));
    case GemmEpilogue::kGeluBackward:
      return launch_gradient<Fp8Sums::kByTile>(args, gelu_backward_epilogue<bf16>(product));
    case GemmEpilogue::kSwigluBackward:
      return launch_gradient<Fp8Sums::kByTile>(args, swiglu_backward_epilogue<bf16>(product));
    case GemmEpilogue::kNone:
    case GemmEpilogue::kAddResidual:
    case GemmEpilogue::kSwiglu:
    case GemmEpilogue::kGeglu:
    case GemmEpilogue::kGegluBackward:
      break;
  }
}

}  // namespace trireme::cuda
