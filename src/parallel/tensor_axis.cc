#include "parallel/tensor_axis.h"

#include "kernels/elementwise/elementwise.h"

namespace trireme {

Pending TensorAxis::start_to_inside(TensorView x_TC) const {
  return cuts_tokens_ ? channel_->start_all_gather(x_TC) : Pending();
}

Pending TensorAxis::start_to_stream(TensorView x_TC) const {
  if (place_.extent == 1) return {};
  return cuts_tokens_ ? channel_->start_reduce_scatter(x_TC) : channel_->start_all_reduce(x_TC);
}

Pending TensorAxis::start_hop(TensorView x_TC, TensorView scratch_TC, int hop) const {
  const std::int64_t rows = stream_tokens(x_TC.shape[0]);
  const int places = place_.extent, here = place_.index;
  const int to = (here + hop) % places, from = (here + places - hop) % places;
  const Message send = message_of(to, x_TC.rows(to * rows, rows));
  const Message receive =
      message_of(from, scratch_TC.rows(row_among_others(from, here) * rows, rows));
  return channel_->start_exchange({&send, 1}, {&receive, 1});
}

void TensorAxis::add_hops(Context& context, TensorView x_TC, TensorView scratch_TC) const {
  const TensorView own = stream_rows(x_TC);
  const TensorView others = scratch_TC.rows(0, x_TC.shape[0] - own.shape[0]);
  sum_ranks(context, own.reshape({own.count()}), others.reshape({place_.extent - 1, own.count()}),
            place_.index);
}

void TensorAxis::sum(TensorView x) const {
  if (place_.extent > 1) channel_->start_all_reduce(x).wait();
}

void TensorAxis::gather_parts(TensorView parts) const {
  if (place_.extent > 1) channel_->start_all_gather(parts).wait();
}

}  // namespace trireme
