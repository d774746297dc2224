// Hopper's fp8 products that end with an activation or its gradient.

#include "kernels/gemm/gemm_fp8_launch.cuh"

namespace trireme::cuda {
namespace {

template <class E>
void launch_forward(const GemmQuantizedGpuArgs& args, const E& epilogue) {
  if (sums_of(args) == Fp8Sums::kAtEnd) {
    if (args.amax != nullptr)
      return launch_fp8<Fp8Sums::kAtEnd, Fp8::kE4M3, Fp8::kE4M3>(
          args, WithMaxima<E>{epilogue, args.amax});
    return launch_fp8<Fp8Sums::kAtEnd, Fp8::kE4M3, Fp8::kE4M3>(args, epilogue);
  }
  launch_fp8<Fp8Sums::kByTile, Fp8::kE4M3, Fp8::kE4M3>(args, epilogue);
}

template <class E>
void launch_backward(const GemmQuantizedGpuArgs& args, const E& epilogue) {
  if (args.amax != nullptr)
    return launch_gradient<Fp8Sums::kByTile>(args, WithMaxima<E>{epilogue, args.amax});
  launch_gradient<Fp8Sums::kByTile>(args, epilogue);
}

}  // namespace

void fp8_and_activation(const GemmQuantizedGpuArgs& args) {
  const GemmGpuArgs& product = args.product;
  switch (product.epilogue) {
    case GemmEpilogue::kGelu:
      return launch_forward(args, gelu_epilogue<bf16>(product));
    case GemmEpilogue::kSwiglu:
      return launch_forward(args, swiglu_epilogue<bf16>(product));
    case GemmEpilogue::kGeluBackward:
      return launch_backward(args, gelu_backward_epilogue<bf16>(product));
    case GemmEpilogue::kSwigluBackward:
      return launch_backward(args, swiglu_backward_epilogue<bf16>(product));
    case GemmEpilogue::kNone:
    case GemmEpilogue::kAddResidual:
    case GemmEpilogue::kGeglu:
    case GemmEpilogue::kGegluBackward:
      break;
  }
}

}  // namespace trireme::cuda
