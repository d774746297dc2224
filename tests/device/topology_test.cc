#include "device/topology.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <thread>

#include "base/error.h"
#include "device/cpu_info.h"

namespace trireme {
namespace {

std::vector<Core> cores(int first, int count) {
  std::vector<Core> made;
  for (int i = first; i < first + count; ++i) made.push_back({{i}});
  return made;
}

Placement place(const std::vector<std::vector<Core>>& of_rank, int rank, std::int64_t threads = 0,
                int cpu_count_max = 1 << 20) {
  return place_rank(of_rank, {rank, threads, cpu_count_max, {}});
}

Placement place_near(const std::vector<std::vector<int>>& near, int rank, std::int64_t threads = 0,
                     int cpu_count_max = 1 << 20) {
  // CPU 8 + i is the second hardware thread of core i: four cores on each side.
  std::vector<Core> all;
  for (int i = 0; i < 8; ++i) all.push_back({{i, 8 + i}});
  return place_rank(std::vector<std::vector<Core>>(near.size(), all),
                    {rank, threads, cpu_count_max, near});
}
const std::vector<int> kLeft = {0, 1, 2, 3, 8, 9, 10, 11}, kRight = {4, 5, 6, 7, 12, 13, 14, 15};

TEST(Placement, ranks_share_the_cores_evenly_and_apart) {
  const std::vector<std::vector<Core>> of_rank(3, cores(0, 12));
  EXPECT_EQ(place(of_rank, 0).cpus, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(place(of_rank, 1).cpus, (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(place(of_rank, 2).cpus, (std::vector<int>{8, 9, 10, 11}));
  EXPECT_EQ(place(of_rank, 2).threads, 4);
  EXPECT_TRUE(place(of_rank, 2).bind);
}

TEST(Placement, every_rank_has_the_same_number_of_threads) {
  const std::vector<std::vector<Core>> of_rank(2, cores(0, 7));
  EXPECT_EQ(place(of_rank, 0).threads, 3);
  EXPECT_EQ(place(of_rank, 1).threads, 3);
  EXPECT_EQ(place(of_rank, 1).cpus, (std::vector<int>{3, 4, 5}));
}

TEST(Placement, one_thread_for_a_core_with_two_hardware_threads) {
  const std::vector<Core> two{{{0, 2}}, {{1, 3}}};
  const Placement placement = place({two, two}, 1);
  EXPECT_EQ(placement.threads, 1);
  EXPECT_EQ(placement.cpus, (std::vector<int>{1, 3}));
  EXPECT_EQ(place({two}, 0).threads, 2);
}

TEST(Placement, one_rank_is_not_bound) {
  const Placement placement = place({cores(0, 4)}, 0);
  EXPECT_FALSE(placement.bind);
  EXPECT_EQ(placement.threads, 4);
  EXPECT_EQ(placement.text(), "CPUs 0-3, 4 threads");
}

TEST(Placement, more_ranks_than_cores_get_one_thread_and_no_place) {
  const Placement placement = place(std::vector<std::vector<Core>>(3, cores(0, 2)), 2);
  EXPECT_EQ(placement.threads, 1);
  EXPECT_FALSE(placement.bind);
}

TEST(Placement, several_ranks_for_each_core_stay_on_it_in_turns) {
  const std::vector<std::vector<Core>> of_rank(6, {{{0, 3}}, {{1, 4}}, {{2, 5}}});
  EXPECT_EQ(place(of_rank, 0).cpus, (std::vector<int>{0, 3}));
  EXPECT_EQ(place(of_rank, 4).cpus, (std::vector<int>{1, 4}));
  EXPECT_TRUE(place(of_rank, 4).bind);
  EXPECT_TRUE(place(of_rank, 4).in_turns);
  EXPECT_EQ(place(of_rank, 4).threads, 1);
  EXPECT_FALSE(place(of_rank, 4, 0, 2).bind) << "a quota is of no core";
  EXPECT_FALSE(place(of_rank, 4, 2).bind) << "threads that the kernel may place";
  EXPECT_FALSE(place(std::vector<std::vector<Core>>(3, cores(0, 3)), 0).in_turns);
}

TEST(Placement, what_the_launcher_bound_stays) {
  const std::vector<std::vector<Core>> of_rank{cores(0, 4), cores(4, 4)};
  EXPECT_EQ(place(of_rank, 1).threads, 4);
  EXPECT_FALSE(place(of_rank, 1).bind);
  EXPECT_EQ(place(of_rank, 1, 0, 4).threads, 4) << "the mask of one rank is no quota of both";
  const std::vector<std::vector<Core>> sockets{cores(0, 4), cores(0, 4), cores(4, 4), cores(4, 4)};
  EXPECT_EQ(place(sockets, 3).threads, 2);
  EXPECT_FALSE(place(sockets, 3).bind);
}

TEST(Placement, a_quota_below_the_cores_bounds_the_threads_and_binds_nobody) {
  const std::vector<std::vector<Core>> of_rank(2, cores(0, 64));
  EXPECT_EQ(place(of_rank, 1, 0, 6).threads, 3);
  EXPECT_FALSE(place(of_rank, 1, 0, 6).bind);
  EXPECT_EQ(place(of_rank, 1, 0, 1).threads, 1);
}

TEST(Placement, a_number_from_the_config_is_taken_and_binds_only_where_it_fills_the_share) {
  const std::vector<std::vector<Core>> of_rank(2, cores(0, 8));
  EXPECT_EQ(place(of_rank, 0, 2).threads, 2);
  EXPECT_FALSE(place(of_rank, 0, 2).bind);
  EXPECT_TRUE(place(of_rank, 0, 4).bind);
  EXPECT_EQ(place(of_rank, 0, 9).threads, 9);
}

TEST(PlacementNearGpus, ranks_share_the_cores_on_the_side_of_their_gpus) {
  const std::vector<std::vector<int>> near = {kRight, kLeft, kRight, kLeft};
  EXPECT_EQ(place_near(near, 0).cpus, (std::vector<int>{4, 5, 12, 13}));
  EXPECT_EQ(place_near(near, 1).cpus, (std::vector<int>{0, 1, 8, 9}));
  EXPECT_EQ(place_near(near, 2).cpus, (std::vector<int>{6, 7, 14, 15}));
  EXPECT_EQ(place_near(near, 3).cpus, (std::vector<int>{2, 3, 10, 11}));
  EXPECT_EQ(place_near(near, 3).threads, 2);
  EXPECT_EQ(place_near(near, 3).cores, 2);
  EXPECT_TRUE(place_near(near, 3).bind);
}

TEST(PlacementNearGpus, one_rank_stays_on_its_gpus_side) {
  const Placement placement = place_near({kRight}, 0);
  EXPECT_EQ(placement.cpus, kRight);
  EXPECT_EQ(placement.threads, 4);
  EXPECT_TRUE(placement.bind);
}

TEST(PlacementNearGpus, every_rank_has_the_threads_of_the_smallest_share) {
  const std::vector<std::vector<int>> near = {kLeft, kLeft, kLeft, kRight};
  EXPECT_EQ(place_near(near, 2).cpus, (std::vector<int>{2, 10}));
  EXPECT_EQ(place_near(near, 3).cpus, (std::vector<int>{4, 12}));
  EXPECT_EQ(place_near(near, 3).threads, 1);
}

TEST(PlacementNearGpus, a_rank_that_does_not_fill_its_share_may_use_its_whole_side) {
  const std::vector<std::vector<int>> near = {kLeft, kRight};
  for (const Placement& placement :
       {place_near(near, 1, 3), place_near(near, 1, 9), place_near(near, 1, 0, 6)}) {
    EXPECT_EQ(placement.cpus, kRight);
    EXPECT_TRUE(placement.bind);
  }
  EXPECT_EQ(place_near(near, 1, 0, 6).threads, 3) << "a quota of both";
  EXPECT_EQ(place_near(near, 1, 0, 10).threads, 4) << "below the machine's CPUs, not below a share";
  EXPECT_EQ(place_near(std::vector<std::vector<int>>(5, kLeft), 4).cpus, kLeft) << "cores run out";
  EXPECT_EQ(place_near(std::vector<std::vector<int>>(5, kLeft), 4).threads, 1);
}

TEST(PlacementNearGpus, ranks_are_placed_as_without_gpus_where_a_side_is_unknown) {
  for (const std::vector<int>& unknown : {std::vector<int>(), std::vector<int>{99}}) {
    const std::vector<std::vector<int>> near = {kRight, unknown};
    EXPECT_EQ(place_near(near, 0).cpus, kLeft);
    EXPECT_EQ(place_near(near, 1).cpus, kRight);
  }
}

TEST(PlacementNearGpus, what_the_launcher_bound_stays) {
  const std::vector<std::vector<Core>> of_rank{cores(0, 4), cores(4, 4)};
  const std::vector<std::vector<int>> near{kRight, kLeft};
  const Placement placement = place_rank(of_rank, {1, 0, 1 << 20, near});
  EXPECT_EQ(placement.cpus, (std::vector<int>{4, 5, 6, 7}));
  EXPECT_FALSE(placement.bind);
}

TEST(Topology, a_gpu_is_near_the_cores_of_its_socket) {
  const auto machine = std::filesystem::path(__FILE__).parent_path() / "two_sockets.xml";
  ASSERT_EQ(setenv("HWLOC_XMLFILE", machine.c_str(), 1), 0);  // read in place of what /sys says
  EXPECT_EQ(cpus_near("0000:01:00.0"), (std::vector<int>{1}));
  EXPECT_EQ(cpus_near("0000:02:00.0"), (std::vector<int>{0}));
  EXPECT_EQ(cpus_near("0000:F0:00.0"), (std::vector<int>{})) << "it hangs on no socket";
  EXPECT_EQ(cpus_near("0000:11:00.0"), (std::vector<int>{})) << "there is no such device";
  EXPECT_EQ(cpus_near("somewhere"), (std::vector<int>{}));
  unsetenv("HWLOC_XMLFILE");
}

TEST(Topology, this_process_may_use_at_least_one_core) {
  const std::vector<Core> mine = usable_cores();
  ASSERT_FALSE(mine.empty());
  cpu_set_t mask;
  ASSERT_EQ(::sched_getaffinity(0, sizeof mask, &mask), 0);
  int cpus = 0;
  for (const Core& core : mine) {
    for (const int cpu : core.cpus) {
      EXPECT_TRUE(CPU_ISSET(cpu, &mask)) << cpu;
      ++cpus;
    }
  }
  EXPECT_EQ(cpus, CPU_COUNT(&mask));
  EXPECT_EQ(parse_cores(text_of(mine)), mine);
}

TEST(Topology, binding_moves_the_calling_thread_alone) {
  const std::vector<Core> mine = usable_cores();
  std::thread([&] {
    Placement placement;
    placement.bind = true;
    placement.cpus = mine[0].cpus;
    bind_this_thread(placement);
    EXPECT_EQ(usable_cores().size(), 1U);
  }).join();
  EXPECT_EQ(usable_cores(), mine);
}

TEST(Topology, text_that_names_no_cores_is_refused) {
  for (const char* text : {"", ";", "1,", "a", "1;;2", "1 2", "-1"})
    EXPECT_THROW(parse_cores(text), DataError) << text;
  EXPECT_EQ(parse_cores("0,8;1"), (std::vector<Core>{{{0, 8}}, {{1}}}));
}

TEST(Topology, ranges_are_short) {
  EXPECT_EQ(range_text(std::vector<int>{}), "");
  EXPECT_EQ(range_text(std::vector<int>{0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
}

}  // namespace
}  // namespace trireme
