#include "kernels/attention/attention_backward_mma.cuh"
#include "kernels/attention/attention_forward_mma.cuh"

namespace trireme::cuda::attention {

template void forward_bf16<128, 128>(const AttentionGpuForward&);
template void backward_bf16<128, 128>(const AttentionGpuBackward&);

}  // namespace trireme::cuda::attention
