// Attention's table for Hopper.

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_sm90.cuh"

namespace trireme::cuda {
namespace attention {
namespace {

/// Smaller heads fill less than half of a tile's 64 columns.
constexpr std::int64_t kHeadSizeMin = 33;

bool serves_forward(const AttentionGpuForward& args) {
  const std::int64_t d = args.shape.head_dim, of_values = args.shape.value_dim;
  const auto suits = [](const auto& heads, std::int64_t dim) {
    return suits_tma(heads.data, heads.stride, dim);
  };
  return args.shape.type == DType::kBF16 && d >= kHeadSizeMin && args.shape.kv_tokens > 0 &&
         suits(args.q, d) && suits(args.k, d) && suits(args.v, of_values) &&
         suits(args.o, of_values);
}

void forward(const AttentionGpuForward& args) {
  const std::int64_t d = args.shape.head_dim;
  if (d <= 64) return forward_sm90<64, 64>(args);
  if (d <= 128) return forward_sm90<128, 128>(args);
  const bool latent = d <= 192 && args.shape.value_dim <= 128;
  (latent ? forward_sm90<192, 128> : forward_sm90<256, 256>)(args);
}

/// Gradients leave by bulk reductions, of multiples of 16 bytes.
bool serves_backward(const AttentionGpuBackward& args) {
  const std::int64_t d = args.shape.head_dim;
  if (args.shape.type != DType::kBF16 || d < kHeadSizeMin) return false;
  for (const AttentionHeads<const void>& heads : {args.q, args.k})
    if (!suits_tma(heads.data, heads.stride, d)) return false;
  for (const AttentionHeads<const void>& heads : {args.v, args.d_o})
    if (!suits_tma(heads.data, heads.stride, args.shape.value_dim)) return false;
  if (args.to_dk.data != nullptr &&
      !(suits_tma(args.to_dk.data, args.to_dk.stride, d) &&
        suits_tma(args.to_dv.data, args.to_dv.stride, args.shape.value_dim)))
    return false;
  for (const AttentionHeads<float>& heads : {args.dq, args.dk, args.dv})
    if (!aligned_to_16(heads.data) || heads.stride % 4 != 0) return false;
  return true;
}

void backward(const AttentionGpuBackward& args) {
  const std::int64_t d = args.shape.head_dim;
  if (d <= 128) return (d <= 64 ? backward_sm90<64> : backward_sm90<128>)(args);
  if (d > 192) return wide_backward_sm90<256, 256>(args);
  const bool latent = args.shape.value_dim <= 128;
  (latent ? wide_backward_sm90<192, 128> : wide_backward_sm90<192, 192>)(args);
}

}  // namespace
}  // namespace attention

const AttentionHopperKernels attention_sm90 = {attention::serves_forward, attention::forward,
                                               attention::serves_backward, attention::backward};

}  // namespace trireme::cuda
