// Hopper's products that end with an activation or its gradient.

#include "kernels/gemm/gemm_sm90.cuh"

namespace trireme::cuda {
namespace {

template <class E>
void launch_weights_either_way(const GemmGpuArgs& args, const E& epilogue) {
  if (args.transpose_b) return launch_hopper<false, true>(args, epilogue);
  launch_hopper<false, false>(args, epilogue);
}

}  // namespace

void hopper_and_activation(const GemmGpuArgs& args) {
  switch (args.epilogue) {
    case GemmEpilogue::kGelu:
      return launch_weights_either_way(args, gelu_epilogue<bf16>(args));
    case GemmEpilogue::kGeluBackward:
      return launch_weights_either_way(args, gelu_backward_epilogue<bf16>(args));
    case GemmEpilogue::kSwiglu:
      return launch_hopper<false, true>(args, swiglu_epilogue<bf16>(args));
    case GemmEpilogue::kSwigluBackward:
      return launch_weights_either_way(args, swiglu_backward_epilogue<bf16>(args));
    case GemmEpilogue::kNone:
    case GemmEpilogue::kAddResidual:
    case GemmEpilogue::kGeglu:
    case GemmEpilogue::kGegluBackward:
      break;
  }
}

}  // namespace trireme::cuda
