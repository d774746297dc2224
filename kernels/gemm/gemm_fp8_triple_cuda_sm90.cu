// fp8 products for Hopper by three warpgroups: a rival of gemm_fp8_cuda_sm90.cu where sums are
// scaled by tiles and stored as they are. By count either may be the faster, so that a GPU has to
// say.

#include "kernels/gemm/gemm_fp8_launch.cuh"

namespace trireme::cuda {
namespace {

bool serves(const GemmQuantizedGpuArgs& args) {
  const bool stored =
      args.product.epilogue == GemmEpilogue::kNone && args.product.c_type == DType::kBF16;
  return stored && gemm_fp8_sm90.serves(args) && sums_of(args) == Fp8Sums::kByTile;
}

void multiply(const GemmQuantizedGpuArgs& args) {
  const auto epilogue = store_epilogue<bf16, bf16>(args.product);
  if (args.format_a == DType::kF8E5M2)
    return launch_fp8_tile<TripleFp8Tile, Fp8::kE5M2, Fp8::kE4M3>(args, epilogue);
  launch_fp8_tile<TripleFp8Tile, Fp8::kE4M3, Fp8::kE4M3>(args, epilogue);
}

}  // namespace

const GemmQuantizedGpuKernels gemm_fp8_triple_sm90 = {serves, multiply};

}  // namespace trireme::cuda
