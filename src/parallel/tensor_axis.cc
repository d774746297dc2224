#include "parallel/tensor_axis.h"

#include <utility>
#include <vector>

#include "kernels/elementwise/elementwise.h"

namespace trireme {

Pending TensorAxis::start_to_inside(TensorView x_TC) const {
  return cuts_tokens_ ? channel_->start_all_gather(x_TC) : Pending();
}

Pending TensorAxis::start_to_stream(TensorView x_TC) const {
  if (place_.extent == 1) return {};
  return cuts_tokens_ ? channel_->start_reduce_scatter(x_TC) : channel_->start_all_reduce(x_TC);
}

void TensorAxis::make_to_stream(Context& context, TensorView x_TC, TensorView scratch_TC,
                                const std::function<void(std::int64_t, std::int64_t)>& make) const {
  const std::int64_t tokens = x_TC.shape[0];
  if (!cuts_tokens_ || channel_->shares_memory()) {
    make(0, tokens);
    return to_stream(x_TC);
  }
  const int places = place_.extent, here = place_.index;
  const std::int64_t rows = stream_tokens(tokens);
  const auto message = [](int place, const TensorView& values) {
    return Message{place, {values.data, values.bytes()}};
  };
  std::vector<Pending> under_way;
  for (int hop = 1; hop < places; ++hop) {
    const int to = (here + hop) % places, from = (here + places - hop) % places;
    make(to * rows, rows);
    const Message send = message(to, x_TC.rows(to * rows, rows));
    const std::int64_t slot = from < here ? from : from - 1;
    const Message receive = message(from, scratch_TC.rows(slot * rows, rows));
    under_way.push_back(channel_->start_exchange({&send, 1}, {&receive, 1}));
  }
  make(here * rows, rows);
  for (Pending& of_place : under_way) of_place.wait();
  const TensorView own = stream_rows(x_TC);
  sum_ranks(context, own.reshape({own.count()}),
            scratch_TC.rows(0, tokens - rows).reshape({places - 1, own.count()}), here);
}

void TensorAxis::use_inside(TensorView x_TC, Pending others,
                            const std::function<void(std::int64_t, std::int64_t)>& use) const {
  const std::int64_t tokens = x_TC.shape[0];
  const auto [first, count] = stream_range(tokens);
  use(first, count);
  others.wait();
  if (first > 0) use(0, first);
  if (first + count < tokens) use(first + count, tokens - first - count);
}

void TensorAxis::sum(TensorView x) const {
  if (place_.extent > 1) channel_->start_all_reduce(x).wait();
}

void TensorAxis::gather_parts(TensorView parts) const {
  if (place_.extent > 1) channel_->start_all_gather(parts).wait();
}

}  // namespace trireme
