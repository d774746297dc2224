// Launches and device memory: which shapes are refused, the same bits in every order and with
// several OS threads, memory that goes back.

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "simt_host/device_array.h"
#include "simt_host/stream_kernels.h"

namespace trireme::simt_cases {
namespace {

class LaunchTest : public testing::Test {
 protected:
  void TearDown() override { simt::options() = {}; }
};

void expect_refused(dim3 grid, dim3 block, std::size_t smem_bytes) {
  try {
    launch_shape(grid, block, smem_bytes);
    ADD_FAILURE() << "was not refused";
  } catch (const simt::Fault& fault) {
    EXPECT_EQ(fault.kind, simt::FaultKind::kLaunchConfig) << fault.what();
  }
}

TEST_F(LaunchTest, more_than_a_gpu_gives_is_refused) {
  expect_refused(1, 1025, 0);
  expect_refused(1, dim3(32, 32, 2), 0);
  expect_refused(1, dim3(1, 1, 65), 0);
  expect_refused(1, 0, 0);
  expect_refused(0, 32, 0);
  expect_refused(dim3(1, 65536), 32, 0);
  expect_refused(dim3(1, 1, 65536), 32, 0);
  expect_refused(1, 32, 232448 + 1);
  EXPECT_NO_THROW(launch_shape(1, 1024, 232448));
  EXPECT_NO_THROW(launch_shape(dim3(2, 3, 4), dim3(4, 4, 64), 0));
}

std::vector<float> run_sums(const std::vector<float>& values) {
  const DeviceArray<float> in(values), sums((values.size() + 95) / 96);
  const DeviceArray<unsigned> counter(std::vector<unsigned>{0});
  sum_blocks(sums.data(), counter.data(), in.data(), static_cast<int>(values.size()), nullptr);
  EXPECT_EQ(counter.values()[0], (values.size() + 95) / 96);
  return sums.values();
}

TEST_F(LaunchTest, every_order_and_several_os_threads_give_the_same_bits) {
  std::vector<float> values(5000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1.0f / static_cast<float>(i + 1);
  const auto expected = run_sums(values);
  for (const auto order : {simt::Order::kBackward, simt::Order::kRandom}) {
    simt::options().order = order;
    EXPECT_EQ(run_sums(values), expected);
  }
  for (const int workers : {2, 5}) {
    simt::options().workers = workers;
    for (int i = 0; i < 20; ++i) EXPECT_EQ(run_sums(values), expected);
  }
}

TEST_F(LaunchTest, a_fault_of_any_os_thread_ends_the_launch) {
  simt::options().workers = 3;
  const DeviceArray<float> in(100), out(100);
  cudaFree(nullptr);
  EXPECT_NO_THROW(add_one(out.data(), in.data(), 100, nullptr));  // checks are off
  expect_refused(1, 2000, 0);
}

TEST_F(LaunchTest, what_many_threads_and_blocks_read_is_no_race) {
  for (const auto order : {simt::Order::kForward, simt::Order::kBackward, simt::Order::kRandom}) {
    simt::options().order = order;
    const DeviceArray<float> row(std::vector<float>(64, 1.0f)), out(64 * 8);
    EXPECT_NO_THROW(broadcast(out.data(), row.data(), 8));
    EXPECT_EQ(out.values(), std::vector<float>(64 * 8, 385.0f));
  }
}

TEST_F(LaunchTest, counters_say_what_was_executed) {
  simt::stats() = {};
  run_sums(std::vector<float>(96 * 3, 1.0f));
  EXPECT_EQ(simt::stats().blocks, 3U);
  EXPECT_EQ(simt::stats().threads, 3U * 96);
  EXPECT_EQ(simt::stats().barriers, 3U);
  EXPECT_EQ(simt::stats().collectives, 3U * 3 * 5);
  EXPECT_EQ(simt::stats().atomics, 3U);
  EXPECT_EQ(simt::stats().float_atomics, 0U);
}

/// Pages that this process holds, in bytes.
std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

TEST(DeviceMemoryTest, freed_memory_and_its_shadow_go_back) {
  const auto use = [] {
    const int count = 1 << 20;
    const DeviceArray<float> x(std::vector<float>(count, 1.0f));
    add_one(x.data(), x.data(), 64 * 1024, nullptr);
  };
  use();
  const std::size_t before = resident_bytes();
  for (int i = 0; i < 60; ++i) use();
  EXPECT_LT(resident_bytes(), before + (std::size_t{24} << 20));
}

TEST(DeviceMemoryTest, places_are_given_away_again) {
  std::set<void*> places;
  for (int i = 0; i < 40000; ++i) {
    void* p = nullptr;
    ASSERT_EQ(cudaMalloc(&p, 5000), cudaSuccess) << i;
    EXPECT_TRUE(simt::is_device_memory(p));
    places.insert(p);
    cudaFree(p);
  }
  EXPECT_GT(places.size(), 4000U);   // not at once: late accesses are to be found
  EXPECT_LT(places.size(), 38000U);  // as many as holes of other sizes let begin elsewhere
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, std::size_t{9} << 30), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
}

TEST(DeviceMemoryTest, a_gpu_has_as_much_as_a_test_gives_it) {
  std::size_t free = 0, total = 0, before = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  const std::size_t limit = total - before + 1000;
  ASSERT_EQ(setenv("TRIREME_SIMT_MEMORY_BYTES", std::to_string(limit).c_str(), 1), 0);
  void *first = nullptr, *second = nullptr;
  EXPECT_EQ(cudaMalloc(&first, 600), cudaSuccess);
  cudaMemGetInfo(&free, &total);
  EXPECT_EQ(total, limit);
  EXPECT_EQ(free, 400U);
  EXPECT_EQ(cudaMalloc(&second, 401), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&second, 400), cudaSuccess);
  cudaFree(first);
  cudaFree(second);
  cudaMemGetInfo(&free, &total);
  EXPECT_EQ(free, 1000U);
  unsetenv("TRIREME_SIMT_MEMORY_BYTES");
}

TEST(DeviceMemoryTest, a_second_free_is_found) {
  void* p = nullptr;
  cudaMalloc(&p, 100);
  EXPECT_THROW(cudaFree(static_cast<char*>(p) + 4), simt::Fault);
  cudaFree(p);
  EXPECT_THROW(cudaFree(p), simt::Fault);
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
}

TEST(DeviceMemoryTest, new_memory_is_poison) {
  const DeviceArray<float> x(3);
  for (const float value : x.values()) EXPECT_NE(value, value);
}

}  // namespace
}  // namespace trireme::simt_cases
