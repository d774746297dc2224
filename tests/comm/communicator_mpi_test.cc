#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/transfer_values.h"
#include "support/mpi_test.h"

namespace trireme {
namespace {

constexpr std::size_t kCounts[] = {0, 1, 2, 3, 5, 7, 100003};

TEST(AllReduce, adds_in_rank_order_whatever_the_size) {
  for (const std::size_t count : kCounts) {
    std::vector<float> values = values_of(test_world().rank(), count);

    test_world().start_all_reduce(view(values)).wait();

    EXPECT_EQ(first_difference(values, serial_sum(test_world().size(), count)), -1) << count;
  }
}

TEST(AllReduce, keeps_several_transfers_in_flight_apart) {
  const std::unique_ptr<Communicator> channel = test_world().channel("gradients");
  std::vector<std::vector<float>> buffers;
  std::vector<Pending> pending;
  for (std::uint64_t i = 0; i < 12; ++i)
    buffers.push_back(values_of(channel->rank(), i % 3 == 0 ? i : 30011 * i, i));

  for (auto& buffer : buffers) pending.push_back(channel->start_all_reduce(view(buffer)));
  // The order of waiting is free.
  for (std::size_t i = pending.size(); i-- > 0;) pending[i].wait();

  for (std::size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_EQ(first_difference(buffers[i], serial_sum(channel->size(), buffers[i].size(), i)), -1)
        << i;
  }
}

TEST(AllReduce, keeps_channels_apart_even_when_ranks_start_them_in_different_orders) {
  const std::unique_ptr<Communicator> first = test_world().channel("first"),
                                      second = test_world().channel("second");
  std::vector<float> a = values_of(first->rank(), 100003, 1),
                     b = values_of(first->rank(), 250007, 2);
  Pending pending_a, pending_b;

  if (first->rank() % 2 == 0) {
    pending_a = first->start_all_reduce(view(a));
    pending_b = second->start_all_reduce(view(b));
  } else {
    pending_b = second->start_all_reduce(view(b));
    pending_a = first->start_all_reduce(view(a));
  }
  test_world().barrier();
  if (first->rank() % 2 == 0) {
    pending_b.wait();
    pending_a.wait();
  } else {
    pending_a.wait();
    pending_b.wait();
  }

  EXPECT_EQ(first_difference(a, serial_sum(first->size(), a.size(), 1)), -1);
  EXPECT_EQ(first_difference(b, serial_sum(first->size(), b.size(), 2)), -1);
}

TEST(AllReduce, runs_beside_blocking_calls_of_the_same_communicator) {
  std::vector<float> values = values_of(test_world().rank(), 1 << 20);
  Pending pending = test_world().start_all_reduce(view(values));

  for (int i = 0; i < 20; ++i) {
    std::int64_t sum[] = {test_world().rank() + 1};
    test_world().sum(sum);
    EXPECT_EQ(sum[0], test_world().size() * (test_world().size() + 1) / 2);
  }
  pending.wait();

  EXPECT_EQ(first_difference(values, serial_sum(test_world().size(), values.size())), -1);
}

TEST(AllReduce, finishes_while_the_caller_is_busy_elsewhere) {
  if (test_world().size() == 1) GTEST_SKIP() << "one rank transfers nothing";
  std::vector<float> values = values_of(test_world().rank(), 300001);
  Pending pending = test_world().start_all_reduce(view(values));
  const std::int64_t sequence = test_launch().flight_recorder().last_sequence();
  bool ended = false;

  // Makes no call into the communicator: only the thread of the transfers can end this loop.
  while (!ended) {
    const auto records = test_launch().flight_recorder().records();
    ended = std::any_of(records.begin(), records.end(), [&](const TransferRecord& record) {
      return record.sequence == sequence && record.end_ns != 0;
    });
  }
  pending.wait();

  EXPECT_EQ(first_difference(values, serial_sum(test_world().size(), values.size())), -1);
}

TEST(AllReduce, passes_infinities_and_nans) {
  std::vector<float> values(100, 1.0F);
  if (test_world().rank() == test_world().size() - 1) {
    values[3] = std::nanf("");
    values[99] = -INFINITY;
  }

  test_world().start_all_reduce(view(values)).wait();

  EXPECT_TRUE(std::isnan(values[3]));
  EXPECT_EQ(values[99], -INFINITY);
  EXPECT_EQ(values[4], static_cast<float>(test_world().size()));
}

TEST(Blocking, broadcast_brings_the_bytes_of_the_root) {
  for (int root = 0; root < test_world().size(); ++root) {
    for (const std::size_t count : kCounts) {
      std::vector<float> values = values_of(test_world().rank(), count);

      test_world().broadcast(std::as_writable_bytes(std::span(values)), root);

      EXPECT_EQ(first_difference(values, values_of(root, count)), -1);
    }
    const std::string mine =
        test_world().rank() == root ? std::string(5000, 'x') + '\0' + "end" : "other";
    EXPECT_EQ(test_world().broadcast_text(mine, root), std::string(5000, 'x') + '\0' + "end");
  }
}

TEST(Blocking, broadcast_from_a_rank_that_is_not_there_is_refused) {
  EXPECT_THROW(test_world().broadcast({}, test_world().size()), InternalError);
  EXPECT_THROW(test_world().broadcast({}, -1), InternalError);
}

TEST(Blocking, all_gather_orders_by_rank) {
  const std::vector<float> mine = values_of(test_world().rank(), 1001);
  std::vector<float> all(1001 * static_cast<std::size_t>(test_world().size()));

  test_world().all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));

  for (int rank = 0; rank < test_world().size(); ++rank) {
    const auto theirs = std::span(all).subspan(static_cast<std::size_t>(rank) * 1001, 1001);
    EXPECT_EQ(first_difference(theirs, values_of(rank, 1001)), -1) << rank;
  }
  EXPECT_THROW(test_world().all_gather(std::as_bytes(std::span(mine)), {}), InternalError);
}

TEST(Blocking, all_gather_text_takes_different_lengths) {
  const auto text_of = [](int rank) {
    return rank == 0 ? std::string()
                     : std::string(static_cast<std::size_t>(rank) * 1000, 'a') + '\0';
  };

  const std::vector<std::string> texts = test_world().all_gather_text(text_of(test_world().rank()));

  ASSERT_EQ(texts.size(), static_cast<std::size_t>(test_world().size()));
  for (int rank = 0; rank < test_world().size(); ++rank)
    EXPECT_EQ(texts[static_cast<std::size_t>(rank)], text_of(rank));
}

TEST(Blocking, reductions_go_in_rank_order) {
  const int rank = test_world().rank(), size = test_world().size();
  double sum[] = {0.1 * (rank + 1), 1.0};
  double expected = 0.1;
  for (int r = 1; r < size; ++r) expected += 0.1 * (r + 1);
  std::int64_t maximum[] = {rank, -rank, std::int64_t{-5} - rank};
  std::int64_t wrapping[] = {INT64_MAX};

  test_world().sum(sum);
  test_world().maximum(maximum);
  test_world().sum(wrapping);

  EXPECT_EQ(sum[0], expected);
  EXPECT_EQ(sum[1], size);
  EXPECT_EQ(maximum[0], size - 1);
  EXPECT_EQ(maximum[1], 0);
  EXPECT_EQ(maximum[2], -5);
  EXPECT_EQ(static_cast<std::uint64_t>(wrapping[0]),
            static_cast<std::uint64_t>(INT64_MAX) * static_cast<unsigned>(size));
}

/// The first ranks that say something, in order; what does not fit is left out.
struct Names {
  std::int64_t count = 0, total = 0;
  std::array<std::int32_t, 61> ranks{};
  void add(const Names& higher) {
    for (std::int64_t i = 0; i < higher.count && count < std::ssize(ranks); ++i)
      ranks[static_cast<std::size_t>(count++)] = higher.ranks[static_cast<std::size_t>(i)];
    total += higher.total;
  }
};

TEST(Combine, goes_in_rank_order_and_ends_the_same_everywhere) {
  Communicator& world = test_world();
  // Several at once, on one channel: their messages stay apart.
  std::array<Names, 5> names;
  std::vector<Pending> pending;
  for (std::size_t i = 0; i < names.size(); ++i) {
    names[i].count = 1;
    names[i].ranks[0] = world.rank();
    names[i].total = static_cast<std::int64_t>(i) * (world.rank() + 1);
    pending.push_back(world.start_combined(names[i], [](Names& a, const Names& b) { a.add(b); }));
  }
  world.barrier();
  for (Pending& each : pending) each.wait();
  for (std::size_t i = 0; i < names.size(); ++i) {
    ASSERT_EQ(names[i].count, world.size());
    for (int rank = 0; rank < world.size(); ++rank)
      EXPECT_EQ(names[i].ranks[static_cast<std::size_t>(rank)], rank);
    EXPECT_EQ(names[i].total, static_cast<std::int64_t>(i) * world.size() * (world.size() + 1) / 2);
  }
}

TEST(Combine, texts_come_to_rank_0_in_rank_order) {
  Communicator& world = test_world();
  const auto text_of = [](int rank) {
    return std::string(static_cast<std::size_t>(rank * 1000), 'x') + std::to_string(rank);
  };
  const std::string all = world.reduce_text(
      text_of(world.rank()),
      [](const std::string& lower, const std::string& higher) { return lower + "," + higher; });
  std::string expected;
  for (int rank = 0; rank < world.size() && world.rank() == 0; ++rank)
    expected += (rank == 0 ? "" : ",") + text_of(rank);
  EXPECT_EQ(all, expected);
}

TEST(Groups, split_orders_ranks_and_keeps_colors_apart) {
  const int rank = test_world().rank(), size = test_world().size(), color = rank % 2;
  const std::unique_ptr<Communicator> half = test_world().split(color);
  std::vector<float> values(10, static_cast<float>(rank));
  float expected = 0;
  for (int r = color; r < size; r += 2) expected += static_cast<float>(r);

  half->start_all_reduce(view(values)).wait();

  EXPECT_EQ(half->size(), (size - color + 1) / 2);
  EXPECT_EQ(half->rank(), rank / 2);
  EXPECT_EQ(values, std::vector<float>(10, expected));
  EXPECT_THROW((void)test_world().split(-1), InternalError);
}

TEST(Groups, a_channel_of_a_split_works_while_the_world_transfers) {
  std::vector<float> big = values_of(test_world().rank(), 1 << 19);
  Pending pending = test_world().start_all_reduce(view(big));
  const std::unique_ptr<Communicator> alone = test_world().split(test_world().rank());
  const std::unique_ptr<Communicator> channel = alone->channel("mine");
  std::vector<float> values{1, 2, 3};

  channel->start_all_reduce(view(values)).wait();
  pending.wait();

  EXPECT_EQ(values, (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(first_difference(big, serial_sum(test_world().size(), big.size())), -1);
}

TEST(RunTogether, every_rank_throws_the_error_of_the_lowest_rank_that_failed) {
  if (test_world().size() == 1) GTEST_SKIP() << "needs two ranks";
  try {
    run_together(test_world(), [] {
      if (test_world().rank() != 0) throw DataError("file {} is short", test_world().rank());
    });
    FAIL() << "rank " << test_world().rank() << " went on";
  } catch (const SharedError& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
    EXPECT_STREQ(error.what(), "rank 1: file 1 is short");
  }
}

TEST(RunTogether, an_error_common_to_all_names_no_rank) {
  try {
    run_together(test_world(), [] { throw ConfigError("optimizer.lr: -1"); });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_STREQ(error.what(), "optimizer.lr: -1");
  }
}

TEST(RunTogether, is_silent_where_nobody_failed_and_keeps_foreign_exceptions) {
  int ran = 0;
  run_together(test_world(), [&] { ++ran; });
  EXPECT_EQ(ran, 1);
  if (test_world().size() == 1) return;
  try {
    run_together(test_world(), [] { throw std::runtime_error("odd"); });
    FAIL();
  } catch (const SharedError& error) {
    EXPECT_EQ(error.code(), ExitCode::kInternal);
  }
}

TEST(Launch, counts_the_ranks_of_the_host) {
  EXPECT_EQ(test_launch().local_size(), test_world().size());
  EXPECT_EQ(test_launch().local_rank(), test_world().rank());
  EXPECT_FALSE(test_launch().host_name().empty());
}

}  // namespace
}  // namespace trireme
