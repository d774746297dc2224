#include "kernels/attention/attention_forward_sm90.cuh"

namespace trireme::cuda::attention {

template void forward_sm90<256, 256>(const AttentionGpuForward&);

}  // namespace trireme::cuda::attention
