// Scales in the order in which cuBLASLt reads them.
#include "kernels/common/turns.cuh"
#include "kernels/gemm/gemm_cublaslt.h"

namespace trireme::cuda::cublaslt {
namespace {

constexpr int kTurns = 4;

/// Neighbouring threads write neighbouring scales.
__global__ void __launch_bounds__(kTurnThreads) order_scales_kernel(const OrderScalesArgs args) {
  const bool down = args.to_row < args.to_column;
  const std::int64_t side = down ? args.rows : args.columns;
  const auto place = [&](std::int64_t i, std::int64_t row_stride, std::int64_t column_stride) {
    const std::int64_t slow = i / side, fast = i - slow * side;
    return down ? fast * row_stride + slow * column_stride
                : slow * row_stride + fast * column_stride;
  };
  for_each_item<kTurns>(
      args.rows * args.columns,
      [&](std::int64_t i) { return args.from[place(i, args.columns, 1)]; },
      [&](std::int64_t i, float scale) { args.to[place(i, args.to_row, args.to_column)] = scale; });
}

}  // namespace

void order_scales(const OrderScalesArgs& args) {
  launch(order_scales_kernel,
         config_of_turns(args.exec, kTurns, args.rows * args.columns, "order_scales"), args);
}

}  // namespace trireme::cuda::cublaslt
