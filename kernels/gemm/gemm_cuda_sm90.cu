// Our kernels' table for Hopper, and its products stored, accumulated or added to a residual.

#include "kernels/gemm/gemm_sm90.cuh"

namespace trireme::cuda {
namespace {

/// What TMA asks of operands (16-byte rows), and the layouts of a linear layer and its gradients.
bool serves(const GemmGpuArgs& args) {
  constexpr std::int64_t kLongest = (std::int64_t{1} << 31) - 256;
  if (args.type != DType::kBF16 || args.k == 0 || (args.transpose_a && args.transpose_b))
    return false;
  if (args.m > kLongest || args.n > kLongest || args.k > kLongest) return false;
  const std::int64_t row_a = args.transpose_a ? args.m : args.k,
                     row_b = args.transpose_b ? args.k : args.n;
  if (row_a % 8 != 0 || row_b % 8 != 0 || !aligned_to_16(args.a, args.b)) return false;
  const bool narrow = args.c_type == DType::kBF16;
  if (narrow && (result_columns(args) % 8 != 0 || !aligned_to_16(args.c, args.saved))) return false;
  return has_epilogue(args);
}

template <class E>
void launch_any_layout(const GemmGpuArgs& args, const E& epilogue) {
  if (args.transpose_a) return launch_hopper<true, false>(args, epilogue);
  if (args.transpose_b) return launch_hopper<false, true>(args, epilogue);
  launch_hopper<false, false>(args, epilogue);
}

void multiply(const GemmGpuArgs& args) {
  if (args.epilogue != GemmEpilogue::kNone && args.epilogue != GemmEpilogue::kAddResidual)
    return hopper_and_activation(args);
  if (args.c_type == DType::kF32) {
    launch_any_layout(args, store_epilogue<bf16, float>(args));
  } else {
    launch_any_layout(args, store_epilogue<bf16, bf16>(args));
  }
}

}  // namespace

const GemmGpuKernels gemm_sm90 = {serves, multiply};

}  // namespace trireme::cuda
