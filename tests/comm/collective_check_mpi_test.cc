#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/collective_check.h"
#include "comm/transfer_values.h"
#include "support/mpi_test.h"

namespace trireme {
namespace {

/// What `start` throws, "" where it throws nothing.
std::string refusal(const std::function<void()>& start) {
  try {
    start();
    return "";
  } catch (const InternalError& error) {
    return error.what();
  }
}

testing::AssertionResult has(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    if (text.find(part) == std::string::npos)
      return testing::AssertionFailure() << '"' << text << "\" lacks \"" << part << '"';
  }
  return testing::AssertionSuccess();
}

/// Every rank, whichever of them strayed, throws the same, which names rank 0 and the last.
bool same_everywhere(const std::string& text) {
  const std::vector<std::string> all = test_world().all_gather_text(text);
  return std::ranges::all_of(all, [&](const std::string& each) { return each == text; });
}

TEST(CheckedCollectives, agree_on_what_is_the_same) {
  const int rank = test_world().rank(), size = test_world().size();
  const std::unique_ptr<Communicator> world = world_with({.segment_bytes = 1000, .check = true});
  if (!world) GTEST_SKIP() << "one rank has nobody to compare with";
  std::vector<float> values = values_of(rank, 5003), out = values_of(rank, 77), in(77, 0),
                     shards(30 * static_cast<std::size_t>(size), 1),
                     gathered(shards.size(), static_cast<float>(rank));
  std::vector<Pending> pending;

  pending.push_back(world->start_all_reduce(view(values)));
  pending.push_back(world->start_reduce_scatter(view(shards)));
  // Different messages on each rank, and none on some: rank 0 to the last, of three ranks or more.
  const Message sends[] = {message(size - 1, std::span(out))};
  const Message receives[] = {message(0, std::span(in))};
  if (rank == 0) pending.push_back(world->start_exchange(sends, {}));
  if (rank == size - 1) pending.push_back(world->start_exchange({}, receives));
  pending.push_back(world->start_all_gather(view(gathered)));
  std::int64_t ranks = 1;
  pending.push_back(world->start_combined(
      ranks, [](std::int64_t& lower, const std::int64_t& higher) { lower += higher; }));
  world->barrier();
  EXPECT_EQ(world->broadcast_text("text", size - 1), "text");
  EXPECT_EQ(world->all_gather_text(std::string(static_cast<std::size_t>(rank), 'x')).back(),
            std::string(static_cast<std::size_t>(size) - 1, 'x'));
  for (Pending& each : pending) each.wait();
  const std::unique_ptr<Communicator> half = world->split(rank % 2);
  std::vector<float> one(3, 1);
  half->start_all_reduce(view(one)).wait();

  EXPECT_EQ(first_difference(values, serial_sum(size, values.size())), -1);
  EXPECT_EQ(piece_of(shards, rank)[29], static_cast<float>(size));
  EXPECT_EQ(gathered[29], 0);
  EXPECT_EQ(gathered.back(), static_cast<float>(size - 1));
  if (rank == size - 1) {
    EXPECT_EQ(first_difference(in, values_of(0, 77)), -1);
  }
  EXPECT_EQ(one[0], static_cast<float>(half->size()));
}

TEST(CheckedCollectives, name_ranks_that_started_different_transfers_on_every_rank) {
  const int last = test_world().size() - 1;
  if (last == 0) GTEST_SKIP() << "needs two ranks";
  const bool astray = test_world().rank() == last;
  const auto count = static_cast<std::size_t>(12 * (last + 1));
  std::vector<float> values(count, 1), more(2 * count, 1),
      first = values_of(test_world().rank(), 70001);
  std::vector<BFloat16> halves(2 * count);
  const std::string name = fmt::format("rank {} started ", last);
  const auto stray = [&](const auto& usual, const auto& other) {
    const std::unique_ptr<Communicator> channel = world_with({.check = true});
    std::ranges::copy(values_of(test_world().rank(), first.size()), first.begin());
    Pending before = channel->start_all_reduce(view(first));
    const std::string text = refusal([&] { (astray ? other(*channel) : usual(*channel)).wait(); });
    EXPECT_TRUE(same_everywhere(text)) << text;
    EXPECT_TRUE(has(text, {"on test, rank 0 started ", name.c_str(), "as its collective 2"}));
    before.wait();
    EXPECT_EQ(first_difference(first, serial_sum(last + 1, first.size())), -1)
        << "what came before goes on";
    EXPECT_EQ(refusal([&] { (void)channel->start_all_reduce(view(values)); }), text)
        << "the channel stays broken";
    return text;
  };
  const auto reduce = [&](Communicator& channel) { return channel.start_all_reduce(view(values)); };

  const std::string size_differs =
      stray(reduce, [&](Communicator& channel) { return channel.start_all_reduce(view(more)); });
  EXPECT_TRUE(has(size_differs, {fmt::format("all_reduce of {} bytes (fp32)", 4 * count).c_str(),
                                 fmt::format("all_reduce of {} bytes (fp32)", 8 * count).c_str()}));
  const std::string kind_differs = stray(
      reduce, [&](Communicator& channel) { return channel.start_reduce_scatter(view(values)); });
  EXPECT_TRUE(has(kind_differs, {"reduce_scatter of"}));
  const std::string type_differs =
      stray(reduce, [&](Communicator& channel) { return channel.start_all_reduce(view(halves)); });
  EXPECT_TRUE(has(type_differs, {"(fp32)", "(bf16)"}));
  const std::string none_differs = stray(reduce, [&](Communicator& channel) {
    return channel.start_all_gather(TensorView(nullptr, DType::kF32, {0}));
  });
  EXPECT_TRUE(has(none_differs, {"all_gather of 0 bytes"}));
}

TEST(CheckedCollectives, name_both_ends_of_messages_that_do_not_match) {
  const int rank = test_world().rank();
  if (test_world().size() == 1) GTEST_SKIP() << "needs two ranks";
  const std::unique_ptr<Communicator> channel = world_with({.check = true});
  std::vector<float> out(10), in(10);
  const Message sends[] = {message(1, std::span(out).first(9))};
  const Message receives[] = {message(0, std::span(in))};

  std::string text;
  if (rank == 0) text = refusal([&] { channel->start_exchange(sends, {}).wait(); });
  if (rank == 1) text = refusal([&] { channel->start_exchange({}, receives).wait(); });

  test_world().barrier();
  if (rank > 1) return;
  EXPECT_TRUE(has(text, {"rank 0 started exchange (sends 36 bytes there, expects 0)",
                         "rank 1 started exchange (sends 0 bytes there, expects 40)"}));
}

TEST(CheckedCollectives, name_ranks_in_different_blocking_calls_on_every_rank) {
  const int last = test_world().size() - 1;
  if (last == 0) GTEST_SKIP() << "needs two ranks";
  const bool astray = test_world().rank() == last;
  const std::unique_ptr<Communicator> world = world_with({.check = true});
  std::vector<std::byte> bytes(8), all(8 * static_cast<std::size_t>(last + 1));
  const auto barrier = [&] { world->barrier(); };
  const auto from = [&](int root) { return [&, root] { world->broadcast(bytes, root); }; };
  const auto gather = [&] { world->all_gather(bytes, all); };
  const auto gather_less = [&] {
    world->all_gather(std::span(bytes).first(4), std::span(all).first(all.size() / 2));
  };
  const auto text = [&] { (void)world->all_gather_text("text"); };
  const auto stray = [&](const std::function<void()>& usual, const std::function<void()>& other,
                         std::initializer_list<const char*> parts) {
    const std::string found = refusal(astray ? other : usual);
    EXPECT_TRUE(same_everywhere(found)) << found;
    EXPECT_TRUE(has(found, {"rank 0 started ", fmt::format("rank {} started ", last).c_str()}));
    EXPECT_TRUE(has(found, parts));
  };

  stray(barrier, from(0), {"barrier", "broadcast of 8 bytes from its rank 0"});
  stray(from(0), from(last), {"from its rank 0", fmt::format("from its rank {}", last).c_str()});
  stray(gather, gather_less, {"all_gather of 8 bytes", "all_gather of 4 bytes"});
  stray(gather, text, {"all_gather_text"});
  stray([&] { world->compare_calls(Operation::kAllReduce, DType::kF32, 8); },
        [&] { world->compare_calls(Operation::kAllReduce, DType::kBF16, 8); }, {"fp32", "bf16"});
}

/// Calls that would wait for each other for ever: neither sees the other's messages.
TEST(CheckedCollectives, name_a_rank_in_a_blocking_call_and_one_in_a_transfer) {
  const int last = test_world().size() - 1;
  if (last == 0) GTEST_SKIP() << "needs two ranks";
  const bool astray = test_world().rank() == last;
  std::vector<float> values(12 * static_cast<std::size_t>(last + 1), 1);
  const auto reduce = [&](Communicator& channel) { channel.start_all_reduce(view(values)).wait(); };
  const auto barrier = [](Communicator& channel) { channel.barrier(); };
  const std::string bytes = std::to_string(4 * values.size());
  for (const bool waits_last : {true, false}) {
    const std::unique_ptr<Communicator> one = world_with({.check = true});
    const std::string same = refusal([&] { astray == waits_last ? barrier(*one) : reduce(*one); });
    EXPECT_TRUE(same_everywhere(same)) << same;
    EXPECT_TRUE(has(same, {"on test, rank 0 started ", "barrier as its collective ",
                           ("all_reduce of " + bytes).c_str(),
                           fmt::format("but rank {} started ", last).c_str()}));

    const std::unique_ptr<Communicator> two = world_with({.check = true});
    const std::unique_ptr<Communicator> gather = two->channel("gather");
    const std::string across =
        refusal([&] { astray == waits_last ? barrier(*two) : reduce(*gather); });
    EXPECT_TRUE(same_everywhere(across)) << across;
    EXPECT_TRUE(has(across, {"rank 0 started ", " on test", " on gather", "barrier",
                             fmt::format("but rank {} started ", last).c_str()}));
  }
}

TEST(CheckedCollectives, name_channels_made_in_different_orders_and_ranks_of_the_job) {
  const int size = test_world().size(), rank = test_world().rank();
  if (size < 3) GTEST_SKIP() << "needs a group that is not the world";
  const std::unique_ptr<Communicator> world = world_with({.check = true});
  // The world but rank 0.
  const std::unique_ptr<Communicator> group = world->split(rank == 0 ? 0 : 1);
  if (rank == 0) return test_world().barrier();
  std::vector<float> values(3);

  const std::string text = refusal([&] {
    const std::unique_ptr<Communicator> channel = group->channel(rank == 1 ? "one" : "other");
    channel->start_all_reduce(view(values)).wait();
  });

  EXPECT_TRUE(has(text, {"rank 1 started ", " on one, but rank 2 started ", " on other"}));
  test_world().barrier();
}

TEST(CheckedCollectives, are_switched_by_the_launch) {
  if (test_world().size() == 1) GTEST_SKIP() << "needs two ranks";
  const std::int64_t bytes = test_world().rank();
  std::vector<float> values(3, 1);

  test_launch().check_collectives(true);
  const std::string compared =
      refusal([&] { test_world().compare_calls(Operation::kAllReduce, DType::kF32, bytes); });
  test_world().start_all_reduce(view(values)).wait();
  test_launch().check_collectives(false);
  const std::string ignored =
      refusal([&] { test_world().compare_calls(Operation::kAllReduce, DType::kF32, bytes); });
  test_world().start_all_reduce(view(values)).wait();

  EXPECT_TRUE(has(compared, {"rank 0", "rank 1"}));
  EXPECT_EQ(ignored, "");
  const auto size = static_cast<float>(test_world().size());
  EXPECT_EQ(values[0], size * size);
}

}  // namespace
}  // namespace trireme
