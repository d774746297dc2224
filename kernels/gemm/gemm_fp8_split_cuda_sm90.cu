// fp8 products for Hopper with f32 results whose tiles would leave a GPU's last turn partly filled:
// a rival of gemm_fp8_f32_cuda_sm90.cu in which blocks share sums over k. Those are added in
// another order, and what sharing costs only a GPU says.

#include "kernels/gemm/gemm_fp8_launch.cuh"

namespace trireme::cuda {
namespace {

bool serves(const GemmQuantizedGpuArgs& args) {
  const GemmGpuArgs& product = args.product;
  const bool added = product.c_type == DType::kF32 && product.bias == nullptr;
  return added && gemm_fp8_sm90.serves(args) && split_of(args).cuts();
}

template <Fp8Sums kSums>
void launch_split(const GemmQuantizedGpuArgs& args) {
  using T = SplitFp8Tile<kSums>;
  const auto epilogue = store_epilogue<bf16, float>(args.product);
  if (args.format_b == DType::kF8E5M2)
    return launch_fp8_tile<T, Fp8::kE4M3, Fp8::kE5M2>(args, epilogue);
  if (args.format_a == DType::kF8E5M2)
    return launch_fp8_tile<T, Fp8::kE5M2, Fp8::kE4M3>(args, epilogue);
  launch_fp8_tile<T, Fp8::kE4M3, Fp8::kE4M3>(args, epilogue);
}

void multiply(const GemmQuantizedGpuArgs& args) {
  if (sums_of(args) == Fp8Sums::kByColumn) return launch_split<Fp8Sums::kByColumn>(args);
  launch_split<Fp8Sums::kByTile>(args);
}

}  // namespace

const GemmQuantizedGpuKernels gemm_fp8_split_sm90 = {serves, multiply,
                                                     gpu_scratch::kSplitTurnsBytes};

}  // namespace trireme::cuda
