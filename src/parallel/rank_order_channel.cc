#include "parallel/rank_order_channel.h"

#include <algorithm>
#include <utility>

#include "base/math.h"
#include "kernels/elementwise/elementwise.h"

namespace trireme {

RankOrderChannel::RankOrderChannel(std::unique_ptr<Communicator> inner, Context& context,
                                   std::int64_t largest_bytes)
    : ForwardingCommunicator(std::move(inner)), context_(context), largest_bytes_(largest_bytes) {
  const std::int64_t bytes = memory_bytes(largest_bytes, size()) / kUnderWay;
  for (Sum& sum : sums_)
    sum.others =
        Buffer(DType::kF32, {ceil_div(bytes, std::int64_t{sizeof(float)})}, context.device());
}

std::int64_t RankOrderChannel::memory_bytes(std::int64_t largest_bytes, int ranks) {
  // Of a whole number of values: those of the largest type, so that a shard of any fits.
  const std::int64_t shard = round_up(ceil_div(largest_bytes, ranks), sizeof(float));
  return kUnderWay * shard * (ranks - 1);
}

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
  const std::int64_t number = started_++;
  Sum& sum = sums_[static_cast<std::size_t>(number % kUnderWay)];
  if (sum.number >= 0) finish(sum);
  sum.values = values.reshape({values.count()});
  sum.back = back;
  sum.number = number;
  const TensorView mine = shard(sum.values, rank());
  const std::size_t bytes = mine.bytes() * static_cast<std::size_t>(size() - 1);
  if (sum.others.bytes() < bytes) {
    context_.synchronize();  // the smaller one may still be read
    sum.others =
        Buffer(DType::kF32, {ceil_div(static_cast<std::int64_t>(bytes), 4)}, context_.device());
    context_.memory_moved();
  }
  sends_.clear();
  receives_.clear();
  for (int other = 0; other < size(); ++other) {
    if (other == rank()) continue;
    sends_.push_back(message_of(other, shard(sum.values, other)));
    receives_.push_back(message_of(other, of_other(sum, other)));
  }
  sum.scatter = inner().start_exchange(sends_, receives_);
  return Pending([this, number] {
    Sum& at = sums_[static_cast<std::size_t>(number % kUnderWay)];
    if (at.number == number) finish(at);
  });
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
  sum.number = -1;
}

}  // namespace trireme
