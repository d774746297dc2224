#include "plan/machine_rates.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

MachineRates copies_of(std::vector<CopyRate> copies) {
  MachineRates rates;
  rates.sgemm_flops_per_second = 1;
  rates.copies = std::move(copies);
  return rates;
}

TEST(MachineRates, a_copy_between_two_sizes_is_on_the_line_between_them) {
  const MachineRates rates = copies_of({{1 << 10, 80}, {1 << 14, 40}, {1 << 20, 10}});
  EXPECT_DOUBLE_EQ(rates.copy_bytes_per_second(1 << 10), 80);
  EXPECT_DOUBLE_EQ(rates.copy_bytes_per_second(1 << 12), 60);
  EXPECT_DOUBLE_EQ(rates.copy_bytes_per_second(1 << 14), 40);
  EXPECT_DOUBLE_EQ(rates.copy_bytes_per_second(1 << 17), 25);
}

TEST(MachineRates, a_copy_outside_the_sizes_has_the_nearest_ones_rate) {
  const MachineRates rates = copies_of({{1 << 10, 80}, {1 << 14, 90}, {1 << 20, 10}});
  EXPECT_DOUBLE_EQ(rates.copy_bytes_per_second(1), 80);
  EXPECT_DOUBLE_EQ(rates.copy_bytes_per_second(1e12), 10);
  EXPECT_DOUBLE_EQ(rates.memory_bytes_per_second(), 10);
  EXPECT_DOUBLE_EQ(rates.cache_bytes_per_second(), 90);
}

TEST(MachineRates, of_ranks_that_run_at_once_add_up) {
  MachineRates sum;
  EXPECT_FALSE(sum.known());
  MachineRates mine = copies_of({{1 << 10, 80}, {1 << 20, 10}});
  mine.bf16_flops_per_second = 2;
  sum.add(mine);
  sum.add(mine);
  EXPECT_TRUE(sum.known());
  EXPECT_EQ(sum.sgemm_flops_per_second, 2);
  EXPECT_EQ(sum.bf16_flops_per_second, 4);
  ASSERT_EQ(sum.copies.size(), 2U);
  EXPECT_EQ(sum.copies[0].bytes, 1 << 10);
  EXPECT_EQ(sum.copies[1].bytes_per_second, 20);
}

TEST(MachineRates, products_of_a_type_that_was_not_measured_count_as_fp32) {
  MachineRates rates;
  rates.sgemm_flops_per_second = 100;
  EXPECT_EQ(rates.flops_per_second(DType::kBF16), 100);
  rates.bf16_flops_per_second = 250;
  EXPECT_EQ(rates.flops_per_second(DType::kBF16), 250);
  EXPECT_EQ(rates.flops_per_second(DType::kF32), 100);
}

TEST(MachineRates, are_measured_for_all_sizes_to_the_largest_asked_for) {
  Context context({}, 2, detect_isa());
  RateRequest request;
  request.largest_copy = 3 << 20;
  int meetings = 0;
  request.together = [&] { ++meetings; };
  const MachineRates rates = measure_rates(context, request);
  EXPECT_GT(rates.sgemm_flops_per_second, 0);
  EXPECT_EQ(rates.bf16_flops_per_second, 0);
  ASSERT_EQ(rates.copies.size(), 4U);  // 64 KiB, 256 KiB, 1 MiB, 3 MiB
  EXPECT_EQ(rates.copies.front().bytes, 64 << 10);
  EXPECT_EQ(rates.copies.back().bytes, 3 << 20);
  for (const CopyRate& copy : rates.copies) EXPECT_GT(copy.bytes_per_second, 0);
  EXPECT_GE(meetings, 5);  // at least once for each figure
}

TEST(MachineRates, the_largest_copy_is_beyond_ordinary_caches) {
  EXPECT_GE(copy_bytes_beyond_cache(), 128 << 20);
  EXPECT_LE(copy_bytes_beyond_cache(), 1 << 30);
}

}  // namespace
}  // namespace trireme
