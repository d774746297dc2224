#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/transfer_values.h"
#include "support/mpi_test.h"

namespace trireme {
namespace {

// About two segments of four ranks at the most, and shards that do not divide.
constexpr std::size_t kCounts[] = {0, 1, 5, 1003, 700001};

/// The first index where a sum is further from the exact one than so many additions may bring it;
/// -1 where none is.
std::int64_t first_beyond_rounding(std::span<const float> sums, int ranks, std::size_t begin,
                                   std::size_t count, std::uint64_t salt) {
  std::vector<double> exact(count), magnitude(count);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<float> term = values_of(rank, count, salt);
    for (std::size_t i = 0; i < count; ++i) {
      exact[i] += term[i];
      magnitude[i] += std::abs(term[i]);
    }
  }
  const double unit = ranks * std::numeric_limits<float>::epsilon();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (!(std::abs(sums[i] - exact[begin + i]) <= unit * magnitude[begin + i]))
      return static_cast<std::int64_t>(i);
  }
  return -1;
}

TEST(LibrarySums, are_the_sum_to_rounding_and_the_same_bits_again) {
  Communicator& world = test_world();
  const std::unique_ptr<Communicator> channel = make_library_sum_channel(world, "library");
  for (const std::size_t count : kCounts) {
    const std::size_t all = count * static_cast<std::size_t>(world.size());
    std::vector<float> reduced[2], scattered[2];
    std::vector<Pending> pending;
    for (int run = 0; run < 2; ++run) {
      reduced[run] = values_of(world.rank(), count, 1);
      scattered[run] = values_of(world.rank(), all, 2);
      pending.push_back(channel->start_all_reduce(view(reduced[run])));
      pending.push_back(channel->start_reduce_scatter(view(scattered[run])));
    }
    for (Pending& transfer : pending) transfer.wait();

    const auto shard = piece_of(scattered[0], world.rank());
    const std::size_t begin = count * static_cast<std::size_t>(world.rank());
    EXPECT_EQ(first_beyond_rounding(reduced[0], world.size(), 0, count, 1), -1) << count;
    EXPECT_EQ(first_beyond_rounding(shard, world.size(), begin, all, 2), -1) << count;
    EXPECT_EQ(first_difference(reduced[0], reduced[1]), -1) << count;
    EXPECT_EQ(first_difference(shard, piece_of(scattered[1], world.rank())), -1) << count;
  }
}

TEST(LibrarySums, leave_bf16_gathers_and_messages_as_they_are) {
  Communicator& world = test_world();
  const std::unique_ptr<Communicator> channel = make_library_sum_channel(world, "library");
  const int next = (world.rank() + 1) % world.size(), size = world.size();
  std::vector<BFloat16> halves = halves_of(world.rank(), 70001);
  std::vector<float> gathered(30011 * static_cast<std::size_t>(size)), beside = values_of(0, 30011);
  std::ranges::copy(values_of(world.rank(), 30011), piece_of(gathered, world.rank()).begin());
  std::vector<float> sent = values_of(world.rank(), 3001), received(3001);
  const Message sends[] = {message(next, std::span(sent))};
  const Message receives[] = {message((world.rank() + size - 1) % size, std::span(received))};

  Pending pending[] = {
      channel->start_all_reduce(view(halves)), channel->start_all_reduce(view(beside)),
      channel->start_all_gather(view(gathered)), channel->start_exchange(sends, receives)};
  for (Pending& transfer : pending) transfer.wait();

  EXPECT_EQ(first_difference(halves, serial_half_sum(size, 70001)), -1);
  for (int rank = 0; rank < size; ++rank)
    EXPECT_EQ(first_difference(piece_of(gathered, rank), values_of(rank, 30011)), -1);
  EXPECT_EQ(first_difference(received, values_of((world.rank() + size - 1) % size, 3001)), -1);
}

}  // namespace
}  // namespace trireme
