#include "base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace trireme {
namespace {

using Words = std::array<std::uint32_t, 4>;

// The known-answer vectors that the authors of Philox publish with Random123 (kat_vectors).
TEST(Random, philox_gives_the_published_answers) {
  EXPECT_EQ(philox(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~0ULL, ~0ULL, ~0ULL), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, streams_differ_by_name_and_by_seed) {
  std::set<std::uint64_t> keys;
  for (const std::uint64_t seed : {0ULL, 1ULL, 1234ULL}) {
    for (const char* name : {"", "a", "b", "model.layers.0.mlp.up_proj.weight"})
      keys.insert(stream_key(seed, name));
  }
  EXPECT_EQ(keys.size(), 12U);
}

TEST(Random, uniform_stays_below_one_and_has_its_moments) {
  double sum = 0, squares = 0;
  constexpr int kCount = 200'000;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const float value = uniform(42, i);
    ASSERT_GE(value, 0.0F);
    ASSERT_LT(value, 1.0F);
    ASSERT_EQ(value * 0x1p24F, std::floor(value * 0x1p24F)) << "24 bits";
    sum += value;
    squares += double{value} * value;
  }
  // Five standard errors.
  EXPECT_NEAR(sum / kCount, 0.5, 5 * std::sqrt(1.0 / 12 / kCount));
  EXPECT_NEAR(squares / kCount, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / kCount));
}

TEST(Random, normal_has_its_moments) {
  double moments[5] = {};
  constexpr int kCount = 400'000;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const double value = normal(7, i);
    ASSERT_LT(std::abs(value), 6.0);
    double power = 1;
    for (double& moment : moments) {
      moment += power / kCount;
      power *= value;
    }
  }
  const double n = kCount;
  EXPECT_NEAR(moments[1], 0, 5 / std::sqrt(n));
  EXPECT_NEAR(moments[2], 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(moments[3], 0, 5 * std::sqrt(15 / n));
  EXPECT_NEAR(moments[4], 3 - 1.2 / 12, 5 * std::sqrt(96 / n))
      << "twelve uniforms: kurtosis 3 - 1.2/12";
}

TEST(Random, normal_values_of_neighbours_are_uncorrelated) {
  double products[3] = {};
  constexpr int kCount = 200'000;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    products[0] += normal(7, i) * normal(7, i + 1);
    products[1] += normal(7, i) * normal(8, i);
    products[2] += normal(7, i) * (uniform(7, i) - 0.5F);
  }
  for (const double product : products)
    EXPECT_LT(std::abs(product) / kCount, 5 / std::sqrt(double{kCount}));
}

TEST(Random, a_value_is_a_function_of_key_and_index_alone) {
  const float value = normal(3, 1'000'000'007);
  (void)normal(3, 5);
  EXPECT_EQ(normal(3, 1'000'000'007), value);
  EXPECT_NE(normal(3, 1'000'000'007 + (1ULL << 40)), value) << "all 64 bits of the index count";
  EXPECT_NE(normal(3 + (1ULL << 40), 1'000'000'007), value) << "all 64 bits of the key count";
}

TEST(Random, filling_gives_the_same_bits_from_any_index_and_for_any_length) {
  constexpr std::uint64_t kTop =
      ~std::uint64_t{0} - 20;  // the index passes its end within a vector
  for (const std::uint64_t first :
       std::vector<std::uint64_t>{0, 1, (1ULL << 32) - 3, (1ULL << 40) + 7, kTop}) {
    for (std::size_t size = 0; size < 40; ++size) {
      std::vector<float> values(size + 1, 77.0F);
      fill_normal(0x299f31d0a4093822, first, 0.02F, std::span(values).first(size));
      for (std::size_t i = 0; i < size; ++i) {
        ASSERT_EQ(values[i], 0.02F * normal(0x299f31d0a4093822, first + i)) << first << " + " << i;
      }
      ASSERT_EQ(values[size], 77.0F) << "written past the end";
    }
  }
}

TEST(Random, integers_below_a_bound_are_unbiased) {
  std::uint64_t counter = 0;
  std::vector<int> counts(6);
  constexpr int kCount = 60'000;
  for (int i = 0; i < kCount; ++i) ++counts[uniform_below(1, 6, &counter)];
  double chi_squared = 0;
  for (const int count : counts) chi_squared += std::pow(count - kCount / 6.0, 2) / (kCount / 6.0);
  EXPECT_LT(chi_squared, 30) << "5 degrees of freedom";
  EXPECT_GE(counter, std::uint64_t{kCount});
}

TEST(Random, any_bound_is_kept) {
  for (const std::uint64_t bound : {1ULL, 2ULL, 3ULL, (1ULL << 63) + 1, ~0ULL}) {
    std::uint64_t counter = 0;
    for (int i = 0; i < 100; ++i) ASSERT_LT(uniform_below(5, bound, &counter), bound);
    // Rejection strikes less than every second time.
    ASSERT_LE(counter, 1000U);
  }
}

}  // namespace
}  // namespace trireme
