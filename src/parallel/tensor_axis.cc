#include "parallel/tensor_axis.h"

namespace trireme {

void TensorAxis::to_inside(TensorView x_TC) const {
  if (cuts_tokens_) channel_->start_all_gather(x_TC).wait();
}

void TensorAxis::to_stream(TensorView x_TC) const {
  if (place_.extent == 1) return;
  if (cuts_tokens_) return channel_->start_reduce_scatter(x_TC).wait();
  channel_->start_all_reduce(x_TC).wait();
}

void TensorAxis::sum(TensorView x) const {
  if (place_.extent > 1) channel_->start_all_reduce(x).wait();
}

void TensorAxis::gather_parts(TensorView parts) const {
  if (place_.extent > 1) channel_->start_all_gather(parts).wait();
}

}  // namespace trireme
