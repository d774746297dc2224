// fp8 products for Hopper with f32 results: gradients of weights.

#include "kernels/gemm/gemm_fp8_launch.cuh"

namespace trireme::cuda {

void fp8_to_f32(const GemmQuantizedGpuArgs& args) {
  const auto epilogue = store_epilogue<bf16, float>(args.product);
  if (sums_of(args) == Fp8Sums::kByColumn)
    return launch_gradient<Fp8Sums::kByColumn>(args, epilogue);
  launch_gradient<Fp8Sums::kByTile>(args, epilogue);
}

}  // namespace trireme::cuda
