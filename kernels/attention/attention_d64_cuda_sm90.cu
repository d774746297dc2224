#include "kernels/attention/attention_forward_sm90.cuh"

namespace trireme::cuda::attention {

template void forward_sm90<64, 64>(const AttentionGpuForward&);

}  // namespace trireme::cuda::attention
