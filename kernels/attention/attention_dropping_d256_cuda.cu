#include "kernels/attention/attention_backward_mma.cuh"
#include "kernels/attention/attention_forward_mma.cuh"

namespace trireme::cuda::attention {

template void forward_dropping<256>(const AttentionGpuForward&, const AttentionDropping&);
template void backward_dropping<256>(const AttentionGpuBackward&, const AttentionDropping&);

}  // namespace trireme::cuda::attention
