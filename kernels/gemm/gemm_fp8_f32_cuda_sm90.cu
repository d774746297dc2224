// fp8 products for Hopper with f32 results: gradients of weights.

#include "kernels/gemm/gemm_fp8_launch.cuh"

namespace trireme::cuda {
namespace {

/// Gradients of results are a, or b where weights are stored transposed.
template <Fp8Sums kSums, class E>
void launch_either(const GemmQuantizedGpuArgs& args, const E& epilogue) {
  if (args.format_b == DType::kF8E5M2)
    return launch_fp8<kSums, Fp8::kE4M3, Fp8::kE5M2>(args, epilogue);
  launch_gradient<kSums>(args, epilogue);
}

}  // namespace

void fp8_to_f32(const GemmQuantizedGpuArgs& args) {
  const auto epilogue = store_epilogue<bf16, float>(args.product);
  if (sums_of(args) == Fp8Sums::kByColumn) return launch_either<Fp8Sums::kByColumn>(args, epilogue);
  launch_either<Fp8Sums::kByTile>(args, epilogue);
}

}  // namespace trireme::cuda
