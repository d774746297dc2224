#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <cstring>
#include <fstream>
#include <memory>

#include "comm/shared_slots.h"
#include "support/mpi_test.h"

namespace trireme {
namespace {

TEST(SharedSlots, show_each_rank_what_the_others_wrote_before_their_marks) {
  const int rank = test_world().rank(), size = test_world().size();
  const std::unique_ptr<SharedSlots> slots = SharedSlots::open(test_world(), 2, 5000);
  ASSERT_NE(slots, nullptr) << "no transfers by shared memory on this machine";
  ASSERT_GE(slots->area_bytes(), 5000U);

  for (std::uint64_t turn = 1; turn <= 300; ++turn) {
    const std::size_t slot = turn % 2;
    // A slot is written anew when all have read the turn before the last.
    while (!slots->all_reached(slot, turn < 3 ? 0 : 2 * (turn - 2) + 1)) sched_yield();
    std::memset(slots->area(slot, rank), static_cast<int>(turn) + rank, slots->area_bytes());
    slots->mark(slot, rank, 2 * turn);
    while (!slots->all_reached(slot, 2 * turn)) sched_yield();
    for (int from = 0; from < size; ++from) {
      const std::byte* const area = slots->area(slot, from);
      const auto expected = static_cast<std::byte>(static_cast<int>(turn) + from);
      ASSERT_EQ(area[0], expected);
      ASSERT_EQ(std::memcmp(area, area + 1, slots->area_bytes() - 1), 0) << "torn at " << turn;
    }
    slots->mark(slot, rank, 2 * turn + 1);
  }
  EXPECT_FALSE(slots->all_reached(0, 1000));
}

TEST(SharedSlots, of_two_groups_are_apart) {
  const std::unique_ptr<SharedSlots> first = SharedSlots::open(test_world(), 1, 1),
                                     second = SharedSlots::open(test_world(), 1, 1);
  ASSERT_TRUE(first && second);

  first->mark(0, test_world().rank(), 7);
  *first->area(0, test_world().rank()) = std::byte{1};
  test_world().barrier();

  EXPECT_TRUE(first->all_reached(0, 7));
  EXPECT_FALSE(second->all_reached(0, 1));
  EXPECT_EQ(*second->area(0, test_world().rank()), std::byte{0});
}

TEST(SharedSlots, are_absent_on_every_rank_where_nobody_has_the_memory) {
  EXPECT_EQ(SharedSlots::open(test_world(), 1, std::size_t{1} << 50), nullptr);
}

TEST(SharedSlots, are_absent_on_every_rank_where_one_cannot_map_them) {
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  if (test_world().rank() == test_world().size() - 1) {
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    struct rlimit tight = before;
    tight.rlim_cur = pages * 4096 + (std::size_t{64} << 20);
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &tight), 0);
  }

  const std::unique_ptr<SharedSlots> slots =
      SharedSlots::open(test_world(), 1, std::size_t{1} << 30);

  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(slots, nullptr);
}

}  // namespace
}  // namespace trireme
