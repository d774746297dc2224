#include "parallel/tensor_axis.h"

#include "kernels/elementwise/elementwise.h"

namespace trireme {

Pending TensorAxis::start_all_gather(TensorView x_TC) const {
  return cuts_tokens_ ? channel_->start_all_gather(x_TC) : Pending();
}

Pending TensorAxis::start_reduce(TensorView x_TC) const {
  if (rank_.extent == 1) return {};
  return cuts_tokens_ ? channel_->start_reduce_scatter(x_TC) : channel_->start_all_reduce(x_TC);
}

Pending TensorAxis::start_hop(TensorView x_TC, TensorView scratch_TC, int hop) const {
  const std::int64_t rows = residual_tokens(x_TC.shape[0]);
  const int ranks = rank_.extent, here = rank_.index;
  const int to = (here + hop) % ranks, from = (here + ranks - hop) % ranks;
  const Message send = message_of(to, x_TC.rows(to * rows, rows));
  const Message receive =
      message_of(from, scratch_TC.rows(row_among_others(from, here) * rows, rows));
  return channel_->start_exchange({&send, 1}, {&receive, 1});
}

void TensorAxis::add_hops(Context& context, TensorView x_TC, TensorView scratch_TC) const {
  const TensorView own = residual_rows(x_TC);
  const TensorView others = scratch_TC.rows(0, x_TC.shape[0] - own.shape[0]);
  sum_ranks(context, own.reshape({own.count()}), others.reshape({rank_.extent - 1, own.count()}),
            rank_.index);
}

void TensorAxis::sum(TensorView x) const {
  if (rank_.extent > 1) channel_->start_all_reduce(x).wait();
}

void TensorAxis::gather_parts(TensorView parts) const {
  if (rank_.extent > 1) channel_->start_all_gather(parts).wait();
}

}  // namespace trireme
