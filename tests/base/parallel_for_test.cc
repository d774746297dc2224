#include "base/parallel_for.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace trireme {
namespace {

TEST(ParallelFor, each_job_is_done_once) {
  for (const std::int64_t jobs : {0, 1, 2, 3, 1000}) {
    std::vector<std::atomic<int>> done(static_cast<std::size_t>(jobs));
    parallel_for(jobs, [&](std::int64_t job) { ++done[static_cast<std::size_t>(job)]; });
    for (std::int64_t job = 0; job < jobs; ++job)
      EXPECT_EQ(done[static_cast<std::size_t>(job)], 1) << job;
  }
}

TEST(ParallelFor, a_fault_comes_out_and_no_further_job_begins) {
  std::atomic<int> begun = 0;
  try {
    parallel_for(1'000'000, [&](std::int64_t) {
      ++begun;
      throw std::runtime_error("a fault");
    });
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "a fault");
  }
  EXPECT_LE(begun, 16) << "one for each thread at most";
}

TEST(ParallelFor, works_on_one_cpu) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  int done = 0;  // no other thread: no atomic needed
  parallel_for(100, [&](std::int64_t job) { EXPECT_EQ(job, done++); });
  EXPECT_EQ(done, 100);
  EXPECT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

}  // namespace
}  // namespace trireme
