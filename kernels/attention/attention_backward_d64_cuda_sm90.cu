#include "kernels/attention/attention_backward_sm90.cuh"

namespace trireme::cuda::attention {

template void backward_sm90<64>(const AttentionGpuBackward&);

}  // namespace trireme::cuda::attention
