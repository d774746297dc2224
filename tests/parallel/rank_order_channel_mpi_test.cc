#include <gtest/gtest.h>

#include <vector>

#include "base/dtype.h"
#include "parallel/rank_order_channel.h"
#include "support/mpi_test.h"

namespace trireme {
namespace {

/// Values whose sum depends on the order of its terms.
std::vector<float> values_of(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto x = static_cast<float>((i * 37 + static_cast<std::size_t>(rank) * 101) % 1009);
    values[i] = rank % 2 == 0 ? 1e6F * x + 0.3F : -1e6F * x + 1e-3F * x;
  }
  return values;
}

class RankOrder : public testing::Test {
 protected:
  static constexpr std::int64_t kLargestBytes = 4000;
  Communicator& world_ = test_launch().job();
  Context context_{{}, 1, detect_isa()};
  RankOrderChannel channel_{world_.channel("inner"), context_, kLargestBytes};
  std::unique_ptr<Communicator> expected_ = world_.channel("expected");
};

TEST_F(RankOrder, sums_have_the_bits_of_the_channel_that_adds_in_rank_order) {
  for (const std::size_t count : {0U, 1U, 2U, 7U, 1000U, 4099U}) {
    std::vector<float> a = values_of(world_.rank(), count), b = a;
    const auto size = static_cast<std::int64_t>(count);
    channel_.start_all_reduce(view_of(a.data(), {size})).wait();
    expected_->start_all_reduce(view_of(b.data(), {size})).wait();
    EXPECT_EQ(a, b) << count;
    if (4 * size > kLargestBytes) continue;
    EXPECT_EQ(context_.memory_moves(), 0) << "its memory was taken before";
  }
}

TEST_F(RankOrder, more_than_it_has_memory_for_are_finished_in_their_order) {
  constexpr std::size_t kCount = 7;
  std::vector<std::vector<float>> a, b;
  std::vector<Pending> pending;
  for (std::size_t i = 0; i < kCount; ++i) {
    a.push_back(values_of(world_.rank() + static_cast<int>(i), 100 + 50 * i));
    b.push_back(a.back());
  }
  for (std::vector<float>& values : a)
    pending.push_back(channel_.start_all_reduce(view_of(values.data(), {std::ssize(values)})));
  for (Pending& each : pending) each.wait();
  for (std::size_t i = 0; i < kCount; ++i) {
    expected_->start_all_reduce(view_of(b[i].data(), {std::ssize(b[i])})).wait();
    EXPECT_EQ(a[i], b[i]) << i;
  }
  EXPECT_EQ(context_.memory_moves(), 0);
}

TEST_F(RankOrder, pieces_of_a_scatter_too_and_of_bf16_several_under_way) {
  const auto ranks = static_cast<std::size_t>(world_.size());
  constexpr std::size_t kPiece = 133;
  std::vector<float> a = values_of(world_.rank(), kPiece * ranks), b = a;
  std::vector<BFloat16> c, d;
  for (const float value : a) c.push_back(to_bfloat16(value));
  d = c;
  const Shape shape{static_cast<std::int64_t>(a.size())};
  Pending first = channel_.start_reduce_scatter(view_of(a.data(), shape));
  Pending second = channel_.start_all_reduce(view_of(c.data(), shape));
  first.wait();
  second.wait();
  expected_->start_reduce_scatter(view_of(b.data(), shape)).wait();
  expected_->start_all_reduce(view_of(d.data(), shape)).wait();
  const std::size_t begin = kPiece * static_cast<std::size_t>(world_.rank());
  for (std::size_t i = begin; i < begin + kPiece; ++i) EXPECT_EQ(a[i], b[i]) << i;
  for (std::size_t i = 0; i < c.size(); ++i) EXPECT_EQ(c[i].bits, d[i].bits) << i;
}

}  // namespace
}  // namespace trireme
