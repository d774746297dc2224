#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "comm/transfer_channel.h"
#include "comm/transfer_values.h"
#include "support/mpi_test.h"

namespace trireme {
namespace {

/// Counts of values in one shard.
constexpr std::size_t kPieceCounts[] = {0, 1, 2, 3, 7, 1001, 70003};

TEST(AllReduce, adds_in_rank_order_for_any_segment_size_shared_or_not) {
  for_segments([](Communicator& world, std::size_t count_max) {
    for (const std::size_t count : {0U, 1U, 3U, 517U, 100003U, 2300001U}) {
      if (count > count_max) continue;
      std::vector<float> values = values_of(world.rank(), count);
      std::vector<BFloat16> halves = halves_of(world.rank(), count);

      world.start_all_reduce(view(values)).wait();
      world.start_all_reduce(view(halves)).wait();

      EXPECT_EQ(first_difference(values, serial_sum(world.size(), count)), -1) << count;
      EXPECT_EQ(first_difference(halves, serial_half_sum(world.size(), count)), -1) << count;
    }
  });
}

TEST(AllReduce, refuses_other_types_and_no_memory) {
  std::vector<double> values(4);
  EXPECT_THROW((void)test_world().start_all_reduce(view(values)), InternalError);
  EXPECT_THROW((void)test_world().start_all_reduce({}), InternalError);
}

TEST(ReduceScatter, leaves_each_rank_the_sum_of_its_shard_for_any_segment_size) {
  const int rank = test_world().rank(), size = test_world().size();
  for_segments([&](Communicator& world, std::size_t count_max) {
    for (const std::size_t count : kPieceCounts) {
      if (count > count_max) continue;
      const std::size_t all = count * static_cast<std::size_t>(size);
      std::vector<float> values = values_of(rank, all), sum = serial_sum(size, all);
      std::vector<BFloat16> halves = halves_of(rank, all), half_sum = serial_half_sum(size, all);

      world.start_reduce_scatter(view(values)).wait();
      world.start_reduce_scatter(view(halves)).wait();

      EXPECT_EQ(first_difference(piece_of(values, rank), piece_of(sum, rank)), -1) << count;
      EXPECT_EQ(first_difference(piece_of(halves, rank), piece_of(half_sum, rank)), -1) << count;
    }
  });
}

TEST(AllGather, fills_every_shard_with_that_of_its_rank_for_any_segment_size) {
  const int rank = test_world().rank(), size = test_world().size();
  for_segments([&](Communicator& world, std::size_t count_max) {
    for (const std::size_t count : kPieceCounts) {
      if (count > count_max) continue;
      const std::size_t all = count * static_cast<std::size_t>(size);
      std::vector<float> values(all, -1), expected(all);
      std::vector<double> wide(all, -1);
      std::vector<BFloat16> halves(all);
      for (int r = 0; r < size; ++r)
        std::ranges::copy(values_of(r, count), piece_of(expected, r).begin());
      std::ranges::copy(piece_of(expected, rank), piece_of(values, rank).begin());
      std::ranges::copy(piece_of(expected, rank), piece_of(wide, rank).begin());
      std::ranges::copy(halves_of(rank, count), piece_of(halves, rank).begin());

      Pending first = world.start_all_gather(view(values));
      Pending second = world.start_all_gather(view(wide));
      Pending third = world.start_all_gather(view(halves));
      third.wait();
      first.wait();
      second.wait();

      EXPECT_EQ(first_difference(values, expected), -1) << count;
      EXPECT_TRUE(std::ranges::equal(wide, expected)) << count;
      for (int r = 0; r < size; ++r) {
        EXPECT_EQ(first_difference(piece_of(halves, r), halves_of(r, count)), -1) << count;
      }
    }
  });
}

TEST(Pieces, that_are_not_equal_are_refused) {
  if (test_world().size() == 1) GTEST_SKIP() << "one shard is equal to itself";
  std::vector<float> values(static_cast<std::size_t>(test_world().size()) + 1);
  EXPECT_THROW((void)test_world().start_reduce_scatter(view(values)), InternalError);
  EXPECT_THROW((void)test_world().start_all_gather(view(values)), InternalError);
}

TEST(Exchange, shifts_around_a_ring_also_where_messages_are_split) {
  const int rank = test_world().rank(), size = test_world().size();
  const int next = (rank + 1) % size, last = (rank + size - 1) % size;
  for (const std::size_t message_bytes : {1U, 4U, 1000U, 1U << 30}) {
    const std::unique_ptr<Communicator> made = world_with({.message_bytes = message_bytes});
    Communicator& world = made ? *made : test_world();
    for (const std::size_t count : {0U, 1U, 250U, 1001U, 300007U}) {
      if (message_bytes < 1000 && count > 2000) continue;
      std::vector<float> mine = values_of(rank, count), theirs(count);
      const Message sends[] = {message(next, std::span(mine))};
      const Message receives[] = {message(last, std::span(theirs))};

      world.start_exchange(sends, receives).wait();

      EXPECT_EQ(first_difference(theirs, values_of(last, count)), -1)
          << message_bytes << ' ' << count;
    }
  }
}

TEST(Exchange, is_an_all_to_all_with_different_lengths_in_any_order_of_ranks) {
  const int rank = test_world().rank(), size = test_world().size();
  const auto length = [](int from, int to) {
    return static_cast<std::size_t>(from * 1000 + to * 37);
  };
  const auto salt = [](int to) { return static_cast<std::uint64_t>(to + 10); };
  std::vector<std::vector<float>> out, in;
  std::vector<Message> sends, receives;
  for (int r = 0; r < size; ++r) {
    out.push_back(values_of(rank, length(rank, r), salt(r)));
    in.emplace_back(length(r, rank));
  }
  for (int r = 0; r < size; ++r) {
    sends.push_back(message(r, std::span(out[static_cast<std::size_t>(r)])));
    const int from = size - 1 - r;
    receives.push_back(message(from, std::span(in[static_cast<std::size_t>(from)])));
  }

  Pending pending = test_world().start_exchange(sends, receives);
  sends.assign(sends.size(), {});  // the lists are copied
  receives.assign(receives.size(), {});
  pending.wait();

  for (int r = 0; r < size; ++r) {
    EXPECT_EQ(first_difference(in[static_cast<std::size_t>(r)],
                               values_of(r, length(r, rank), salt(rank))),
              -1)
        << r;
  }
}

TEST(Exchange, matches_messages_between_two_ranks_in_order_and_copies_own_ones) {
  const int rank = test_world().rank(), size = test_world().size(), next = (rank + 1) % size,
            last = (rank + size - 1) % size;
  std::vector<float> out{1, 2, 3, 4, 5, 6}, in(6), own_out{7, 8, 9}, own_in(3);
  const std::span<float> o(out), i(in), x(own_out), y(own_in);
  const Message sends[] = {message(next, o.first(2)), message(rank, x.first(1)),
                           message(next, o.subspan(2, 1)), message(rank, x.last(2)),
                           message(next, o.last(3))};
  const Message receives[] = {message(last, i.first(2)), message(last, i.subspan(2, 1)),
                              message(rank, y.first(1)), message(rank, y.last(2)),
                              message(last, i.last(3))};
  if (size == 1) GTEST_SKIP() << "the next test has one rank's messages to itself";

  test_world().start_exchange(sends, receives).wait();

  EXPECT_EQ(in, out);
  EXPECT_EQ(own_in, own_out);
}

TEST(Exchange, of_a_rank_with_itself_copies_and_refuses_a_send_without_its_end) {
  const int rank = test_world().rank();
  std::vector<float> out{1, 2, 3}, in(3);
  const Message send[] = {message(rank, std::span(out))};
  const Message receive[] = {message(rank, std::span(in))};
  const Message shorter[] = {message(rank, std::span(in).first(2))};
  const Message nobody[] = {message(test_world().size(), std::span(in))};

  test_world().start_exchange(send, receive).wait();

  EXPECT_EQ(in, out);
  EXPECT_THROW((void)test_world().start_exchange(send, {}), InternalError);
  EXPECT_THROW((void)test_world().start_exchange({}, receive), InternalError);
  EXPECT_THROW((void)test_world().start_exchange(send, shorter), InternalError);
  EXPECT_THROW((void)test_world().start_exchange(nobody, {}), InternalError);
  EXPECT_THROW((void)test_world().start_exchange({}, nobody), InternalError);
}

TEST(Exchange, needs_only_the_ranks_that_have_messages) {
  const int rank = test_world().rank(), size = test_world().size();
  const std::unique_ptr<Communicator> channel = test_world().channel("edges");
  std::vector<float> first = values_of(rank, 5), values = values_of(rank, 40000, 1), got(70000);
  Pending exchange;
  if (size > 1 && rank == 0) {
    std::vector<float> sent = values_of(0, 70000, 2);
    const Message sends[] = {message(size - 1, std::span(sent))};
    channel->start_exchange(sends, {}).wait();
  } else if (size > 1 && rank == size - 1) {
    const Message receives[] = {message(0, std::span(got))};
    exchange = channel->start_exchange({}, receives);
  }

  channel->start_all_reduce(view(first)).wait();
  channel->start_all_reduce(view(values)).wait();
  exchange.wait();

  EXPECT_EQ(first_difference(first, serial_sum(size, 5)), -1);
  EXPECT_EQ(first_difference(values, serial_sum(size, 40000, 1)), -1);
  if (size > 1 && rank == size - 1) {
    EXPECT_EQ(first_difference(got, values_of(0, 70000, 2)), -1);
  }
}

TEST(Exchange, may_be_received_into_long_before_it_is_sent) {
  const int rank = test_world().rank(), size = test_world().size(), peer = rank ^ 1;
  if (peer >= size) GTEST_SKIP() << "no partner";
  // Both ranks start all their receives first, more than there are segments.
  std::vector<std::vector<float>> out, in;
  std::vector<Pending> pending;
  for (std::uint64_t i = 0; i < 10; ++i) {
    out.push_back(values_of(rank, 20000 + i, i));
    in.emplace_back(20000 + i);
  }

  for (auto& values : in) {
    const Message receives[] = {message(peer, std::span(values))};
    pending.push_back(test_world().start_exchange({}, receives));
  }
  for (auto& values : out) {
    const Message sends[] = {message(peer, std::span(values))};
    pending.push_back(test_world().start_exchange(sends, {}));
  }
  for (Pending& each : pending) each.wait();

  for (std::uint64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(first_difference(in[i], values_of(peer, 20000 + i, i)), -1) << i;
  }
}

TEST(Exchange, tells_of_a_message_shorter_or_longer_than_expected) {
  const int rank = test_world().rank(), size = test_world().size();
  if (size == 1) GTEST_SKIP() << "needs two ranks";
  for (const std::size_t expected : {0U, 2U, 7U}) {
    const std::unique_ptr<Communicator> channel = test_world().channel("lengths");
    std::vector<float> out{1, 2, 3}, in(10);
    const Message sends[] = {message(1, std::span(out))};
    const Message receives[] = {message(0, std::span(in).first(expected))};
    if (rank == 0) channel->start_exchange(sends, {}).wait();
    if (rank == 1) {
      EXPECT_THROW(channel->start_exchange({}, receives).wait(), InternalError) << expected;
      EXPECT_THROW((void)channel->start_exchange({}, {}), InternalError) << "broken from then on";
    }
    test_world().barrier();
  }
}

TEST(Transfers, of_all_kinds_are_in_flight_together) {
  const int rank = test_world().rank(), size = test_world().size();
  const int next = (rank + 1) % size, last = (rank + size - 1) % size;
  const std::unique_ptr<Communicator> shared = test_world().channel("mixed"),
                                      made = world_with({.shared = false});
  struct Round {
    std::vector<float> reduced, scattered, gathered, sent, received;
    std::vector<BFloat16> halves;
  };
  std::vector<Round> rounds(8);
  const auto count_of = [&](std::size_t i) { return i % 3 == 0 ? i : 9001 * i; };
  const auto all_of = [&](std::size_t i) { return count_of(i) * static_cast<std::size_t>(size); };
  for (int repeat = 0; repeat < 4; ++repeat) {
    Communicator* const channel = made && repeat % 2 == 1 ? made.get() : shared.get();
    std::vector<Pending> pending;
    for (std::size_t i = 0; i < rounds.size(); ++i) {
      Round& round = rounds[i];
      round.reduced = values_of(rank, count_of(i), i);
      round.scattered = values_of(rank, all_of(i), i + 100);
      round.halves = halves_of(rank, count_of(i), i + 200);
      round.gathered.assign(all_of(i), 0);
      std::ranges::copy(values_of(rank, count_of(i), i + 300),
                        piece_of(round.gathered, rank).begin());
      round.sent = values_of(rank, count_of(i), i + 400);
      round.received.assign(count_of(i), 0);
      const Message sends[] = {message(next, std::span(round.sent))};
      const Message receives[] = {message(last, std::span(round.received))};
      pending.push_back(channel->start_all_reduce(view(round.reduced)));
      pending.push_back(channel->start_exchange(sends, receives));
      pending.push_back(channel->start_reduce_scatter(view(round.scattered)));
      pending.push_back(channel->start_all_gather(view(round.gathered)));
      pending.push_back(channel->start_all_reduce(view(round.halves)));
    }
    for (std::size_t i = 0; i < pending.size(); ++i) pending[i * 7 % pending.size()].wait();

    for (std::size_t i = 0; i < rounds.size(); ++i) {
      Round& round = rounds[i];
      std::vector<float> sum = serial_sum(size, all_of(i), i + 100);
      EXPECT_EQ(first_difference(round.reduced, serial_sum(size, count_of(i), i)), -1) << i;
      EXPECT_EQ(first_difference(piece_of(round.scattered, rank), piece_of(sum, rank)), -1) << i;
      EXPECT_EQ(first_difference(round.halves, serial_half_sum(size, count_of(i), i + 200)), -1)
          << i;
      for (int r = 0; r < size; ++r) {
        EXPECT_EQ(first_difference(piece_of(round.gathered, r), values_of(r, count_of(i), i + 300)),
                  -1);
      }
      EXPECT_EQ(first_difference(round.received, values_of(last, count_of(i), i + 400)), -1) << i;
    }
  }
}

void expect_exact_counts(const std::unique_ptr<Communicator>& channel) {
  const std::int64_t ranks = channel->size();
  const int rank = channel->rank(), next = (rank + 1) % channel->size(),
            last = (rank + channel->size() - 1) % channel->size();
  std::vector<BFloat16> values(1000 * static_cast<std::size_t>(ranks));
  std::int64_t before = 0;
  const auto sent = [&] {
    return channel->counters().bytes_sent - std::exchange(before, channel->counters().bytes_sent);
  };

  channel->start_reduce_scatter(view(values)).wait();
  EXPECT_EQ(sent(), 2000 * (ranks - 1));
  channel->start_all_gather(view(values)).wait();
  EXPECT_EQ(sent(), 2000 * (ranks - 1));
  channel->start_all_reduce(view(values)).wait();
  EXPECT_EQ(sent(), 4000 * (ranks - 1));
  std::vector<std::byte> out(30), in(30);
  const Message sends[] = {{rank, std::span(out).first(10)}, {next, std::span(out).last(20)}};
  const Message receives[] = {{rank, std::span(in).first(10)}, {last, std::span(in).last(20)}};
  channel->start_exchange(sends, receives).wait();
  EXPECT_EQ(sent(), ranks == 1 ? 0 : 20);
  // Uneven shards: all ranks together send each value to its owner and back from it.
  std::vector<float> uneven(100003);
  channel->start_all_reduce(view(uneven)).wait();
  std::int64_t total[] = {sent()};
  EXPECT_EQ(channel->counters().transfers, ranks == 1 ? 0 : 5);
  channel->sum(total);
  EXPECT_EQ(total[0], 2 * (ranks - 1) * 400012);
}

TEST(Transfers, count_the_bytes_that_they_send) {
  expect_exact_counts(test_world().channel("counted"));
  if (test_world().size() > 1) {
    expect_exact_counts(world_with({.shared = false}));
    expect_exact_counts(world_with({.segment_bytes = 1000, .shared = false}));
  }
}

TEST(Transfers, are_recorded_by_their_names) {
  if (test_world().size() == 1) GTEST_SKIP() << "one rank transfers nothing";
  const std::unique_ptr<Communicator> channel = test_world().channel("recorded");
  std::vector<float> values(12);
  std::vector<std::byte> bytes(5);
  const Message to_self[] = {{test_world().rank(), bytes}};
  const std::int64_t before = test_launch().flight_recorder().last_sequence();

  channel->start_all_reduce(view(values)).wait();
  channel->start_reduce_scatter(view(values)).wait();
  channel->start_all_gather(view(values)).wait();
  channel->start_exchange(to_self, to_self).wait();

  std::string names;
  for (const TransferRecord& record : test_launch().flight_recorder().records()) {
    if (record.sequence <= before) continue;
    EXPECT_STREQ(record.channel.data(), "recorded");
    EXPECT_NE(record.end_ns, 0) << record.operation;
    names += fmt::format("{} {}, ", record.operation, record.bytes);
  }
  EXPECT_EQ(names, "all_reduce 48, reduce_scatter 48, all_gather 48, exchange 10, ");
}

}  // namespace
}  // namespace trireme
