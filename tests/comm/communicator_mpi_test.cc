#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <ranges>
#include <utility>
#include <vector>

#include "base/math.h"
#include "base/random.h"
#include "comm/communicator.h"
#include "comm/mpi_communicator.h"
#include "support/mpi_test.h"

namespace trireme {
namespace {

std::vector<float> values_of(int rank, std::size_t count, std::uint64_t salt = 0) {
  const std::uint64_t key = stream_key(salt, "rank " + std::to_string(rank));
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = std::ldexp(normal(key, i), static_cast<int>(i % 30) - 15);
  return values;
}

std::vector<float> serial_sum(int ranks, std::size_t count, std::uint64_t salt = 0) {
  std::vector<float> sum = values_of(0, count, salt);
  for (int rank = 1; rank < ranks; ++rank) {
    const std::vector<float> term = values_of(rank, count, salt);
    for (std::size_t i = 0; i < count; ++i) sum[i] += term[i];
  }
  return sum;
}

/// The first index whose bits differ, or -1.
std::int64_t first_difference(std::span<const float> a, std::span<const float> b) {
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (i >= a.size() || i >= b.size() ||
        std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) {
      return static_cast<std::int64_t>(i);
    }
  }
  return -1;
}

/// The world with options of its own; null where this process is alone and has no MPI.
std::unique_ptr<Communicator> world_with(const TransferOptions& options) {
  auto* world = dynamic_cast<MpiCommunicator*>(&test_world());
  return world == nullptr ? nullptr : world->channel_with_options("test", options);
}

template <class T>
TensorView view(std::vector<T>& values) {
  return view_of(values.data(), {static_cast<std::int64_t>(values.size())});
}

constexpr std::size_t kCounts[] = {0, 1, 2, 3, 5, 7, 100003};

TEST(AllReduce, adds_in_rank_order_whatever_the_size) {
  for (const std::size_t count : kCounts) {
    std::vector<float> values = values_of(test_world().rank(), count);

    test_world().start_all_reduce(view(values)).wait();

    EXPECT_EQ(first_difference(values, serial_sum(test_world().size(), count)), -1) << count;
  }
}

TEST(AllReduce, gives_the_same_bits_for_any_segment_size) {
  for (const std::size_t segment_bytes : {4U, 12U, 1000U, 65536U, 400012U, 4194304U}) {
    const std::unique_ptr<Communicator> world = world_with({.segment_bytes = segment_bytes});
    if (!world) GTEST_SKIP() << "one rank has no segments";
    const std::size_t count = segment_bytes < 1000 ? 517 : 100003;
    std::vector<float> values = values_of(world->rank(), count);

    world->start_all_reduce(view(values)).wait();

    EXPECT_EQ(first_difference(values, serial_sum(world->size(), count)), -1) << segment_bytes;
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

/// The values of `rank` in bf16.
std::vector<BFloat16> halves_of(int rank, std::size_t count, std::uint64_t salt = 0) {
  std::vector<BFloat16> halves;
  for (const float value : values_of(rank, count, salt)) halves.push_back(to_bfloat16(value));
  return halves;
}

std::vector<BFloat16> serial_half_sum(int ranks, std::size_t count, std::uint64_t salt = 0) {
  std::vector<float> sum(count, -0.0F);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<BFloat16> term = halves_of(rank, count, salt);
    for (std::size_t i = 0; i < count; ++i) sum[i] += to_float(term[i]);
  }
  std::vector<BFloat16> narrow;
  for (const float value : sum) narrow.push_back(to_bfloat16(value));
  return narrow;
}

std::int64_t first_difference(std::span<const BFloat16> a, std::span<const BFloat16> b) {
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (i >= a.size() || i >= b.size() || a[i].bits != b[i].bits)
      return static_cast<std::int64_t>(i);
  }
  return -1;
}

template <class T>
std::span<T> piece_of(std::vector<T>& pieces, int rank) {
  const std::size_t count = pieces.size() / static_cast<std::size_t>(test_world().size());
  return std::span(pieces).subspan(static_cast<std::size_t>(rank) * count, count);
}

/// Counts of values in one piece.
constexpr std::size_t kPieceCounts[] = {0, 1, 2, 3, 7, 1001, 70003};
/// Down to a value in a piece, up to more than any operand here.
constexpr std::size_t kSegmentBytes[] = {4, 1000, 65536, 1 << 22};

TEST(AllReduce, adds_bf16_in_fp32_and_rounds_once_for_any_segment_size) {
  for (const std::size_t segment_bytes : kSegmentBytes) {
    const std::unique_ptr<Communicator> world = world_with({.segment_bytes = segment_bytes});
    if (!world) GTEST_SKIP() << "one rank has no segments";
    for (const std::size_t count : {0U, 1U, 3U, 517U, 100003U}) {
      if (segment_bytes == 4 && count > 1000) continue;
      std::vector<BFloat16> values = halves_of(world->rank(), count);

      world->start_all_reduce(view(values)).wait();

      EXPECT_EQ(first_difference(values, serial_half_sum(world->size(), count)), -1)
          << segment_bytes << ' ' << count;
    }
  }
}

TEST(AllReduce, refuses_other_types_and_no_memory) {
  std::vector<double> values(4);
  EXPECT_THROW((void)test_world().start_all_reduce(view(values)), InternalError);
  EXPECT_THROW((void)test_world().start_all_reduce({}), InternalError);
}

TEST(ReduceScatter, leaves_each_rank_the_sum_of_its_piece_for_any_segment_size) {
  const int rank = test_world().rank(), size = test_world().size();
  for (const std::size_t segment_bytes : kSegmentBytes) {
    const std::unique_ptr<Communicator> made = world_with({.segment_bytes = segment_bytes});
    Communicator& world = made ? *made : test_world();
    for (const std::size_t count : kPieceCounts) {
      if (segment_bytes == 4 && count > 2000) continue;
      const std::size_t all = count * static_cast<std::size_t>(size);
      std::vector<float> values = values_of(rank, all), sum = serial_sum(size, all);
      std::vector<BFloat16> halves = halves_of(rank, all), half_sum = serial_half_sum(size, all);

      world.start_reduce_scatter(view(values)).wait();
      world.start_reduce_scatter(view(halves)).wait();

      EXPECT_EQ(first_difference(piece_of(values, rank), piece_of(sum, rank)), -1)
          << segment_bytes << ' ' << count;
      EXPECT_EQ(first_difference(piece_of(halves, rank), piece_of(half_sum, rank)), -1)
          << segment_bytes << ' ' << count;
    }
  }
}

TEST(AllGather, fills_every_piece_with_that_of_its_rank_for_any_segment_size) {
  const int rank = test_world().rank(), size = test_world().size();
  for (const std::size_t segment_bytes : kSegmentBytes) {
    const std::unique_ptr<Communicator> made = world_with({.segment_bytes = segment_bytes});
    Communicator& world = made ? *made : test_world();
    for (const std::size_t count : kPieceCounts) {
      if (segment_bytes == 4 && count > 2000) continue;
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

      EXPECT_EQ(first_difference(values, expected), -1) << segment_bytes << ' ' << count;
      EXPECT_TRUE(std::ranges::equal(wide, expected)) << segment_bytes << ' ' << count;
      for (int r = 0; r < size; ++r) {
        EXPECT_EQ(first_difference(piece_of(halves, r), halves_of(r, count)), -1) << count;
      }
    }
  }
}

TEST(Pieces, that_are_not_equal_are_refused) {
  if (test_world().size() == 1) GTEST_SKIP() << "one piece is equal to itself";
  std::vector<float> values(static_cast<std::size_t>(test_world().size()) + 1);
  EXPECT_THROW((void)test_world().start_reduce_scatter(view(values)), InternalError);
  EXPECT_THROW((void)test_world().start_all_gather(view(values)), InternalError);
}

template <class T>
Message message(int rank, std::span<T> values) {
  return {rank, std::as_writable_bytes(values)};
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
  const std::unique_ptr<Communicator> channel = test_world().channel("mixed");
  struct Round {
    std::vector<float> reduced, scattered, gathered, sent, received;
    std::vector<BFloat16> halves;
  };
  std::vector<Round> rounds(8);
  const auto count_of = [&](std::size_t i) { return i % 3 == 0 ? i : 9001 * i; };
  const auto all_of = [&](std::size_t i) { return count_of(i) * static_cast<std::size_t>(size); };
  for (int repeat = 0; repeat < 3; ++repeat) {
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

TEST(Transfers, count_the_bytes_that_they_send) {
  const std::unique_ptr<Communicator> channel = test_world().channel("counted");
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
  // Uneven pieces: all ranks together send each value to its owner and back from it.
  std::vector<float> uneven(100003);
  channel->start_all_reduce(view(uneven)).wait();
  std::int64_t total[] = {sent()};
  EXPECT_EQ(channel->counters().transfers, ranks == 1 ? 0 : 5);
  channel->sum(total);
  EXPECT_EQ(total[0], 2 * (ranks - 1) * 400012);
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
