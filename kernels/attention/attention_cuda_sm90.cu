// Attention's table for Hopper.

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_sm90.cuh"

namespace trireme::cuda {
namespace attention {
namespace {

/// Smaller heads fill less than half of a tile's 64 columns.
constexpr std::int64_t kHeadSizeMin = 33;

bool serves_forward(const AttentionGpuForward& args) {
  const std::int64_t d = args.shape.head_dim;
  const auto suits = [&](const auto& heads) { return suits_tma(heads.data, heads.stride, d); };
  return args.shape.type == DType::kBF16 && d >= kHeadSizeMin && args.shape.kv_tokens > 0 &&
         suits(args.q) && suits(args.k) && suits(args.v) && suits(args.o);
}

void forward(const AttentionGpuForward& args) {
  const std::int64_t d = args.shape.head_dim;
  if (d <= 64) return forward_sm90<64>(args);
  (d <= 128 ? forward_sm90<128> : forward_sm90<256>)(args);
}

}  // namespace
}  // namespace attention

const AttentionHopperKernels attention_sm90 = {attention::serves_forward, attention::forward};

}  // namespace trireme::cuda
