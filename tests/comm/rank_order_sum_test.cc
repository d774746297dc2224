#include "comm/rank_order_sum.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/random.h"

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
    expected[i] = ((data[0][i] + data[1][i]) + data[2][i]) + data[3][i];
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
