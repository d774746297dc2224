#include "parallel/rank_order_channel.h"

#include <algorithm>
#include <utility>

#include "base/math.h"
#include "kernels/elementwise/elementwise.h"

namespace trireme {

RankOrderChannel::RankOrderChannel(std::unique_ptr<Communicator> inner, Context& context)
    : ForwardingCommunicator(std::move(inner)), context_(context) {}

Pending RankOrderChannel::start_all_reduce(TensorView values) {
  expect_summable("all_reduce", values);
  return start(values, Back::kYes);
}

Pending RankOrderChannel::start_reduce_scatter(TensorView shards) {
  expect_summable("reduce_scatter", shards);
  expect_shards("reduce_scatter", shards);
  return start(shards, Back::kNo);
}

TensorView RankOrderChannel::shard(const TensorView& values, int rank) const {
  const Slice part = even_slice(values.count(), size(), rank);
  return values.rows(part.begin, part.size);
}

TensorView RankOrderChannel::of_other(const Sum& sum, int rank) const {
  const TensorView mine = shard(sum.values, this->rank());
  const auto slot = static_cast<std::size_t>(row_among_others(rank, this->rank()));
  return {sum.others.view().data + slot * mine.bytes(), mine.dtype, mine.shape};
}

Pending RankOrderChannel::start(TensorView values, Back back) {
  if (size() == 1 || values.count() == 0) return {};
  auto sum = std::find_if(sums_.begin(), sums_.end(), [](const Sum& each) { return !each.busy; });
  if (sum == sums_.end()) sum = sums_.emplace(sums_.end());
  sum->values = values.reshape({values.count()});
  sum->back = back;
  sum->busy = true;
  const TensorView mine = shard(sum->values, rank());
  const std::size_t bytes = mine.bytes() * static_cast<std::size_t>(size() - 1);
  if (sum->others.bytes() < bytes) {
    context_.synchronize();  // the smaller one may still be read
    sum->others =
        Buffer(DType::kF32, {ceil_div(static_cast<std::int64_t>(bytes), 4)}, context_.device());
    context_.memory_moved();
  }
  sends_.clear();
  receives_.clear();
  for (int other = 0; other < size(); ++other) {
    if (other == rank()) continue;
    sends_.push_back(message_of(other, shard(sum->values, other)));
    receives_.push_back(message_of(other, of_other(*sum, other)));
  }
  sum->scatter = inner().start_exchange(sends_, receives_);
  return Pending([this, at = &*sum] { finish(*at); });
}

void RankOrderChannel::finish(Sum& sum) {
  sum.scatter.wait();
  const TensorView mine = shard(sum.values, rank());
  const TensorView others(sum.others.view().data, mine.dtype, {size() - 1, mine.count()});
  sum_ranks(context_, mine, others, rank());
  if (sum.back == Back::kYes) {
    sends_.clear();
    receives_.clear();
    for (int other = 0; other < size(); ++other) {
      if (other == rank()) continue;
      sends_.push_back(message_of(other, mine));
      receives_.push_back(message_of(other, shard(sum.values, other)));
    }
    inner().start_exchange(sends_, receives_).wait();
  }
  sum.busy = false;
}

}  // namespace trireme
