#include "base/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace trireme {
namespace {

constexpr double kMax = std::numeric_limits<double>::max();
constexpr double kTiny = std::numeric_limits<double>::denorm_min();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double sum_of(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) sum.add(value);
  return sum.value();
}

/// Doubles of all magnitudes: random sign-free bits.
double any_double(std::uint64_t index) {
  const auto words = philox(7, index, 0);
  const auto bits = (static_cast<std::uint64_t>(words[0]) << 32 | words[1]) & 0x7fffffffffffffffU;
  const double value = std::bit_cast<double>(bits);
  return std::isfinite(value) ? value : 1.0;
}

TEST(ExactSum, a_single_value_comes_back_with_the_same_bits) {
  for (const double value : {0.0, 1.0, kTiny, 3 * kTiny, 0x1p-1022, 0x1.fffffffffffffp-1022,
                             0x1.8p-1023, 0.1, kMax, 1e-310}) {
    EXPECT_EQ(sum_of({value}), value);
  }
  for (std::uint64_t i = 0; i < 20000; ++i) ASSERT_EQ(sum_of({any_double(i)}), any_double(i)) << i;
}

TEST(ExactSum, two_values_are_rounded_as_the_cpu_rounds_their_sum) {
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const double a = any_double(i);
    // Near enough in magnitude that all roundings occur.
    int exponent = 0, unused = 0;
    std::frexp(a, &exponent);
    const double near = std::ldexp(std::frexp(any_double(i + 100000), &unused),
                                   exponent - static_cast<int>(i % 60));
    ASSERT_EQ(sum_of({a, near}), a + near) << a << " + " << near;
  }
}

TEST(ExactSum, ties_go_to_even_and_a_bit_far_below_breaks_them) {
  EXPECT_EQ(sum_of({1, 0x1p-53}), 1);
  EXPECT_EQ(sum_of({1 + 0x1p-52, 0x1p-53}), 1 + 0x1p-51);
  EXPECT_EQ(sum_of({1, 0x1p-53, kTiny}), 1 + 0x1p-52);
  EXPECT_EQ(sum_of({kTiny, 0x1p-53, 1}), 1 + 0x1p-52);
}

TEST(ExactSum, what_plain_addition_loses_is_kept) {
  std::vector<double> values = {1};
  for (int i = 0; i < 1024; ++i) values.push_back(0x1p-60);
  EXPECT_EQ(sum_of(values), 1 + 0x1p-50);
}

TEST(ExactSum, order_and_grouping_change_no_bit) {
  std::vector<double> values;
  for (std::uint64_t i = 0; i < 1000; ++i)
    values.push_back(std::ldexp(1 + uniform(3, i), static_cast<int>(i % 200) - 100));
  const double expected = sum_of(values);
  std::reverse(values.begin(), values.end());
  EXPECT_EQ(sum_of(values), expected);
  std::vector<ExactSum> parts(7);
  for (std::size_t i = 0; i < values.size(); ++i) parts[i * i % 7].add(values[i]);
  ExactSum by_add, by_words;
  for (ExactSum& part : parts) by_add.add(part);
  for (ExactSum& part : parts) {
    for (std::size_t i = 0; i < ExactSum::kWords; ++i) by_words.words()[i] += part.words()[i];
  }
  EXPECT_EQ(by_add.value(), expected);
  EXPECT_EQ(by_words.value(), expected);
}

TEST(ExactSum, a_sum_goes_on_after_its_words_were_reduced) {
  ExactSum sum;
  for (int i = 0; i < 1000; ++i) sum.add(0.1);
  // The largest reduction: a million ranks with the same words.
  for (std::int64_t& word : sum.words()) word <<= 20;
  for (int i = 0; i < 1000; ++i) sum.add(1);
  ExactSum expected;
  for (int i = 0; i < 1000; ++i) expected.add(0.1 * (1 << 20));
  for (int i = 0; i < 1000; ++i) expected.add(1);
  EXPECT_EQ(sum.value(), expected.value());
}

TEST(ExactSum, words_are_in_order_before_a_reduction_however_much_was_added) {
  ExactSum sum;
  for (int i = 0; i < 100000; ++i) sum.add(0x1.fffffffffffffp20);
  for (const std::int64_t word : sum.words()) {
    EXPECT_GE(word, 0);
    EXPECT_LT(word, std::int64_t{1} << 32);
  }
  EXPECT_EQ(sum.value(), 100000 * 0x1.fffffffffffffp20);
}

TEST(ExactSum, a_sum_beyond_the_largest_double_is_infinite) {
  EXPECT_EQ(sum_of({kMax, kMax}), kInfinity);
  EXPECT_EQ(sum_of({kMax, 0x1p970}), kInfinity);           // half a unit: rounds up
  EXPECT_EQ(sum_of({kMax, 0x1.fffffffffffffp969}), kMax);  // just below
  std::vector<double> many(100000, kMax);
  EXPECT_EQ(sum_of(many), kInfinity);
}

TEST(ExactSum, a_non_finite_or_negative_value_makes_the_sum_nan_and_survives_reduction) {
  for (const double bad : {kInfinity, -kInfinity, std::nan(""), -1.0}) {
    ExactSum sum, clean;
    sum.add(1);
    EXPECT_FALSE(sum.non_finite());
    sum.add(bad);
    EXPECT_TRUE(sum.non_finite());
    EXPECT_TRUE(std::isnan(sum.value()));
    clean.add(2);
    clean.add(sum);
    EXPECT_TRUE(clean.non_finite());
  }
  ExactSum zero;
  zero.add(-0.0);
  EXPECT_FALSE(zero.non_finite());
  EXPECT_EQ(zero.value(), 0);
}

}  // namespace
}  // namespace trireme
