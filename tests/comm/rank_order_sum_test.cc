#include "comm/rank_order_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/random.h"
#include "support/tree_sum.h"

namespace trireme {
namespace {

std::vector<float> values_of(std::uint64_t key, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = std::ldexp(normal(key, i), static_cast<int>(i % 40) - 20);
  return values;
}

template <class T>
void sum_of(std::span<const T* const> sources, std::size_t count, T* out) {
  std::vector<const std::byte*> bytes;
  for (const T* source : sources) bytes.push_back(reinterpret_cast<const std::byte*>(source));
  sum_in_rank_order(bytes, DTypeOf<T>::kValue, count, reinterpret_cast<std::byte*>(out));
}

std::vector<BFloat16> rounded(std::span<const float> values) {
  std::vector<BFloat16> narrow;
  for (const float value : values) narrow.push_back(to_bfloat16(value));
  return narrow;
}

TEST(SumInRankOrder, adds_from_the_first_source_to_the_last) {
  const float big = 1e8F, one = 1, minus = -1e8F;
  const float* forward[] = {&big, &one, &minus};
  const float* other[] = {&big, &minus, &one};
  float sum = 7;

  sum_of<float>(forward, 1, &sum);
  EXPECT_EQ(sum, 0.0F);
  sum_of<float>(other, 1, &sum);
  EXPECT_EQ(sum, 1.0F);
}

TEST(SumInRankOrder, adds_neighbours_first) {
  // One beside 1e8 is lost: sums from the first to the last are smaller.
  const float big = 1e8F, one = 1, minus = -1e8F, none = 0;
  const std::vector<std::vector<const float*>> lines = {
      {&one, &one, &big, &minus},                                      // (01)(23)
      {&one, &none, &one, &none, &big, &minus},                        // ((01)(23))(45)
      {&one, &none, &none, &none, &big, &minus, &one},                 // ((01)(23))((45)6)
      {&one, &none, &none, &none, &none, &none, &big, &minus, &one}};  // (0..7)8
  for (const std::vector<const float*>& line : lines) {
    float sum = 7;
    sum_of<float>(line, 1, &sum);
    EXPECT_EQ(sum, 2.0F) << line.size();
  }
}

TEST(SumInRankOrder, of_aligned_blocks_added_before_is_that_of_all) {
  const std::size_t count = 1100;
  for (std::size_t all = 1; all <= 17; ++all) {
    std::vector<std::vector<float>> data;
    std::vector<const float*> sources;
    for (std::size_t r = 0; r < all; ++r) data.push_back(values_of(r + 1, count));
    for (const std::vector<float>& values : data) sources.push_back(values.data());
    std::vector<float> expected(count);
    for (std::size_t i = 0; i < count; ++i)
      expected[i] = tree_sum(all, [&](std::size_t r) { return data[r][i]; });
    for (std::size_t block = 1; block <= 8; block *= 2) {
      std::vector<std::vector<float>> sums;
      for (std::size_t first = 0; first < all; first += block) {
        const std::span<const float* const> part =
            std::span(sources).subspan(first, std::min(block, all - first));
        sum_of<float>(part, count, sums.emplace_back(count).data());
      }
      std::vector<const float*> blocks;
      for (const std::vector<float>& sum : sums) blocks.push_back(sum.data());
      std::vector<float> sum(count);

      sum_of<float>(blocks, count, sum.data());

      ASSERT_EQ(sum, expected) << all << " by " << block;
    }
  }
}

TEST(SumInRankOrder, keeps_the_bits_of_a_single_source) {
  const float source[] = {-0.0F, std::numeric_limits<float>::denorm_min(),
                          -std::numeric_limits<float>::infinity()};
  const float* sources[] = {source};
  float sum[3];

  sum_of<float>(sources, 3, sum);

  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(std::bit_cast<std::uint32_t>(sum[i]), std::bit_cast<std::uint32_t>(source[i]));
}

TEST(SumInRankOrder, gives_an_element_the_same_bits_at_any_offset_and_length) {
  const std::size_t count = 2100;
  std::vector<std::vector<float>> data;
  std::vector<float> expected(count);
  for (std::uint64_t r = 0; r < 4; ++r) data.push_back(values_of(r + 1, count));
  for (std::size_t i = 0; i < count; ++i) {
    expected[i] = (data[0][i] + data[1][i]) + (data[2][i] + data[3][i]);
  }
  for (const std::size_t offset : {0U, 1U, 2U, 3U, 5U}) {
    for (const std::size_t length : {0U, 1U, 3U, 4U, 7U, 1023U, 1024U, 1025U, 2049U}) {
      const float* sources[] = {&data[0][offset], &data[1][offset], &data[2][offset],
                                &data[3][offset]};
      std::vector<float> sum(length + 1, 42.0F);

      sum_of<float>(sources, length, sum.data());

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

    sum_of<float>(sources, 1500, data[target].data());

    EXPECT_EQ(data[target], expected) << target;
  }
}

TEST(SumInRankOrder, adds_bf16_in_fp32_and_rounds_once_to_even) {
  // Each term of 2^-9 is lost where every sum is rounded; together they are a tie, and then more.
  const std::vector<BFloat16> one = rounded({{1.0F, 1.0F, 1.0078125F, 1.0F, -1.0F}});
  const std::vector<BFloat16> tiny = rounded({{0x1p-9F, 0x1p-9F, 0x1p-9F, 0x1p-9F, -0x1p-9F}});
  const std::vector<BFloat16> last = rounded({{0x1p-9F, 0x1p-9F, 0x1p-9F, 0x1.1p-9F, -0x1.1p-9F}});
  const BFloat16* sources[] = {one.data(), tiny.data(), last.data()};
  std::vector<BFloat16> sum(5);

  sum_of<BFloat16>(sources, 5, sum.data());

  const float expected[] = {1.0F, 1.0F, 1.015625F, 1.0078125F, -1.0078125F};
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(to_float(sum[i]), expected[i]) << i;
}

TEST(SumInRankOrder, gives_bf16_the_bits_of_a_scalar_loop_at_any_offset_and_length) {
  const std::size_t count = 2100;
  std::vector<std::vector<BFloat16>> data;
  for (std::uint64_t r = 0; r < 3; ++r) {
    std::vector<float> values = values_of(r + 1, count);
    values[r * 5 + 1] = std::numeric_limits<float>::quiet_NaN();
    values[r + 40] = std::numeric_limits<float>::infinity();
    values[50] =
        r == 0 ? std::numeric_limits<float>::infinity() : -std::numeric_limits<float>::infinity();
    values[51] = 3e38F;  // overflows to infinity by rounding or adding
    values[52] = std::numeric_limits<float>::denorm_min();
    values[53] = -0.0F;
    data.push_back(rounded(values));
  }
  for (const std::size_t offset : {0U, 1U, 2U, 3U}) {
    for (const std::size_t length : {0U, 1U, 3U, 4U, 60U, 1025U, 2049U}) {
      const BFloat16* sources[] = {&data[0][offset], &data[1][offset], &data[2][offset]};
      std::vector<BFloat16> sum(length + 1, BFloat16{42});

      sum_of<BFloat16>(sources, length, sum.data());

      for (std::size_t i = 0; i < length; ++i) {
        const BFloat16 expected = to_bfloat16(to_float(sources[0][i]) + to_float(sources[1][i]) +
                                              to_float(sources[2][i]));
        ASSERT_EQ(sum[i].bits, expected.bits) << offset << ' ' << i;
      }
      EXPECT_EQ(sum[length].bits, 42) << "wrote past the end";
    }
  }
}

TEST(SumInRankOrder, refuses_what_is_no_gradient) {
  const std::byte* sources[] = {nullptr};
  EXPECT_THROW(sum_in_rank_order(sources, DType::kF64, 0, nullptr), InternalError);
  EXPECT_THROW(sum_in_rank_order(sources, DType::kI32, 0, nullptr), InternalError);
}

}  // namespace
}  // namespace trireme
