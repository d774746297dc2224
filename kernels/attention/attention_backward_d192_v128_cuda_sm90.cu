#include "kernels/attention/attention_backward_wide_sm90.cuh"

namespace trireme::cuda::attention {

template void wide_backward_sm90<192, 128>(const AttentionGpuBackward&);

}  // namespace trireme::cuda::attention
