#include "parallel/tensor_axis.h"

namespace trireme {

Pending TensorAxis::start_to_inside(TensorView x_TC) const {
  return cuts_tokens_ ? channel_->start_all_gather(x_TC) : Pending();
}

Pending TensorAxis::start_to_stream(TensorView x_TC) const {
  if (place_.extent == 1) return {};
  return cuts_tokens_ ? channel_->start_reduce_scatter(x_TC) : channel_->start_all_reduce(x_TC);
}

void TensorAxis::sum(TensorView x) const {
  if (place_.extent > 1) channel_->start_all_reduce(x).wait();
}

void TensorAxis::gather_parts(TensorView parts) const {
  if (place_.extent > 1) channel_->start_all_gather(parts).wait();
}

}  // namespace trireme
