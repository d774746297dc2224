#include "comm/rank_order_sum.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/random.h"

namespace trireme {
namespace {

std::vector<float> values_of(std::uint64_t key, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = std::ldexp(normal(key, i), static_cast<int>(i % 40) - 20);
  return values;
}

TEST(SumInRankOrder, adds_from_the_first_source_to_the_last) {
  const float big = 1e8F, one = 1, minus = -1e8F;
  const float* forward[] = {&big, &one, &minus};
  const float* other[] = {&big, &minus, &one};
  float sum = 7;

  sum_in_rank_order(forward, 1, &sum);
  EXPECT_EQ(sum, 0.0F);
  sum_in_rank_order(other, 1, &sum);
  EXPECT_EQ(sum, 1.0F);
}

TEST(SumInRankOrder, keeps_the_bits_of_a_single_source) {
  const float source[] = {-0.0F, std::numeric_limits<float>::denorm_min(),
                          -std::numeric_limits<float>::infinity()};
  const float* sources[] = {source};
  float sum[3];

  sum_in_rank_order(sources, 3, sum);

  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(std::bit_cast<std::uint32_t>(sum[i]), std::bit_cast<std::uint32_t>(source[i]));
}

TEST(SumInRankOrder, gives_an_element_the_same_bits_at_any_offset_and_length) {
  const std::size_t count = 2100;
  std::vector<std::vector<float>> data;
  std::vector<float> expected(count);
  for (std::uint64_t r = 0; r < 4; ++r) data.push_back(values_of(r + 1, count));
  for (std::size_t i = 0; i < count; ++i) {
    expected[i] = ((data[0][i] + data[1][i]) + data[2][i]) + data[3][i];
  }
  for (const std::size_t offset : {0U, 1U, 2U, 3U, 5U}) {
    for (const std::size_t length : {0U, 1U, 3U, 4U, 7U, 1023U, 1024U, 1025U, 2049U}) {
      const float* sources[] = {&data[0][offset], &data[1][offset], &data[2][offset],
                                &data[3][offset]};
      std::vector<float> sum(length + 1, 42.0F);

      sum_in_rank_order(sources, length, sum.data());

      for (std::size_t i = 0; i < length; ++i)
        ASSERT_EQ(sum[i], expected[offset + i]) << offset << ' ' << i;
      EXPECT_EQ(sum[length], 42.0F) << "wrote past the end";
    }
  }
}

TEST(SumInRankOrder, may_write_over_any_source) {
  for (std::size_t target = 0; target < 3; ++target) {
    std::vector<std::vector<float>> data{values_of(1, 1500), values_of(2, 1500),
                                         values_of(3, 1500)};
    std::vector<float> expected(1500);
    for (std::size_t i = 0; i < 1500; ++i) expected[i] = (data[0][i] + data[1][i]) + data[2][i];
    const float* sources[] = {data[0].data(), data[1].data(), data[2].data()};

    sum_in_rank_order(sources, 1500, data[target].data());

    EXPECT_EQ(data[target], expected) << target;
  }
}

}  // namespace
}  // namespace trireme
