// The table of attention's backward pass for Hopper.

#include "kernels/attention/attention_backward_sm90.cuh"

namespace trireme::cuda {
namespace attention {
namespace {

/// What TMA asks of heads in rows, what bulk reductions ask of gradients, and the two head sizes,
/// of which a smaller head fills more than half.
bool serves(const AttentionGpuBackward& args) {
  const AttentionShape& shape = args.shape;
  const std::int64_t d = shape.head_dim;
  if (shape.type != DType::kBF16 || !((d > 32 && d <= 64) || (d > 96 && d <= 128))) return false;
  for (const AttentionHeads<const void>& heads : {args.q, args.k, args.v, args.d_o})
    if (!suits_tma(heads.data, heads.stride, d)) return false;
  for (const AttentionHeads<float>& heads : {args.dq, args.dk, args.dv})
    if (!aligned_to_16(heads.data) || heads.stride % 4 != 0) return false;
  return true;
}

void backward(const AttentionGpuBackward& args) {
  args.shape.head_dim <= 64 ? backward_sm90<64>(args) : backward_sm90<128>(args);
}

}  // namespace
}  // namespace attention

const AttentionHopperBackward attention_backward_sm90 = {attention::serves, attention::backward};

}  // namespace trireme::cuda
