// Products that end with an activation or its gradient.

#include "kernels/gemm/gemm_launch.cuh"

namespace trireme::cuda {
namespace {

template <class T, class E>
void launch_weights_either_way(const GemmGpuArgs& args, const E& epilogue) {
  if (args.transpose_b) return launch_product<false, true>(args, epilogue, T());
  launch_product<false, false>(args, epilogue, T());
}

}  // namespace

void multiply_and_gelu(const GemmGpuArgs& args) {
  for_type(args.type, [&](auto type) {
    using T = decltype(type);
    launch_weights_either_way<T>(args, gelu_epilogue<T>(args));
  });
}

void multiply_and_gelu_backward(const GemmGpuArgs& args) {
  for_type(args.type, [&](auto type) {
    using T = decltype(type);
    launch_weights_either_way<T>(args, gelu_backward_epilogue<T>(args));
  });
}

void multiply_and_swiglu_backward(const GemmGpuArgs& args) {
  for_type(args.type, [&](auto type) {
    using T = decltype(type);
    launch_weights_either_way<T>(args, swiglu_backward_epilogue<T>(args));
  });
}

void multiply_and_swiglu(const GemmGpuArgs& args) {
  for_type(args.type, [&](auto type) {
    using T = decltype(type);
    launch_product<false, true>(args, swiglu_epilogue<T>(args), T());
  });
}

}  // namespace trireme::cuda
