// The table of fp8 products for Hopper, and those whose bf16 results are stored or added to a
// residual.

#include "kernels/gemm/gemm_fp8_launch.cuh"

namespace trireme::cuda {
namespace {

/// Of all that is indexed by an int.
constexpr std::int64_t kLongest = (std::int64_t{1} << 31) - 1024;

bool short_enough(const ScalesGpu& scales, std::int64_t rows) {
  return rows <= kLongest && rows * scales.columns <= kLongest;
}

/// Whether the scales are those of a recipe, and b's of a tile or of each column.
bool serves_scales(const GemmQuantizedGpuArgs& args) {
  const auto along_k = [](const ScalesGpu& of) {
    return of.column_block == 0 || of.column_block == 128;
  };
  const std::int64_t a = args.a.row_block, b = args.b.row_block;
  const bool rows = (a == 1 && (b == 1 || b == 128)) || (a == 0 && b == 0);
  return rows && along_k(args.a) && along_k(args.b);
}

bool serves(const GemmQuantizedGpuArgs& args) {
  const GemmGpuArgs& product = args.product;
  if (product.m == 0 || product.n == 0 || product.k == 0 || product.k % 128 != 0) return false;
  if (!short_enough(args.a, product.m) || !short_enough(args.b, product.n)) return false;
  if (!aligned_to_16(product.a, product.b) || !serves_scales(args)) return false;
  const bool wide = product.c_type == DType::kF32;
  if (args.format_b != DType::kF8E4M3 && !(wide && args.format_a == DType::kF8E4M3)) return false;
  switch (product.epilogue) {
    case GemmEpilogue::kNone:
      return wide || args.b.row_block != 1;
    case GemmEpilogue::kGelu:
      return args.b.row_block != 1 && args.format_a == DType::kF8E4M3;
    case GemmEpilogue::kAddResidual:
    case GemmEpilogue::kGeluBackward:
    case GemmEpilogue::kSwigluBackward:
      return args.b.row_block != 1;
    case GemmEpilogue::kSwiglu:
      return args.format_a == DType::kF8E4M3 && ColumnTiles::can_be_dual(args.b);
    case GemmEpilogue::kGeglu:
    case GemmEpilogue::kGegluBackward:
      return false;
  }
  return false;
}

void multiply(const GemmQuantizedGpuArgs& args) {
  const GemmGpuArgs& product = args.product;
  if (product.epilogue != GemmEpilogue::kNone && product.epilogue != GemmEpilogue::kAddResidual)
    return fp8_and_activation(args);
  if (product.c_type == DType::kF32) return fp8_to_f32(args);
  const auto epilogue = store_epilogue<bf16, bf16>(product);
  if (sums_of(args) == Fp8Sums::kAtEnd && args.format_a == DType::kF8E4M3)
    return launch_fp8<Fp8Sums::kAtEnd, Fp8::kE4M3, Fp8::kE4M3>(args, epilogue);
  launch_gradient<Fp8Sums::kByTile>(args, epilogue);
}

}  // namespace

const GemmQuantizedGpuKernels gemm_fp8_sm90 = {serves, multiply, 0, fp8_leaves_maxima};

}  // namespace trireme::cuda
