#include "dataset/sample_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "dataset/permutation.h"
#include "token_fixture.h"

namespace trireme {
namespace {

using Order = WindowSource::Order;

std::vector<std::int32_t> tokens_of(const SampleSource& source, std::int64_t sample) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(source.length()) + 1);
  source.read(sample, {tokens, {}});
  return tokens;
}

class SampleOrderTest : public ::testing::Test {
 protected:
  [[nodiscard]] Corpus corpus(const std::vector<std::int64_t>& lengths) const {
    return Corpus(std::make_shared<IndexedFile>(
        token_file(counting_documents(lengths)).write(folder_, "tokens")));
  }
  TemporaryDirectory folder_;
};

TEST_F(SampleOrderTest, windows_share_one_token_and_the_rest_is_dropped) {
  // floor((n - 1) / 4) windows of n tokens
  for (const auto& [tokens, windows] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {5, 1}, {8, 1}, {9, 2}, {12, 2}, {13, 3}}) {
    EXPECT_EQ(corpus({tokens}).windows(4), windows) << tokens;
    EXPECT_EQ(WindowSource(corpus({2, tokens - 2}), 4, Order::kSequential, {}).count(), windows);
  }
  EXPECT_EQ(corpus({}).windows(4), 0);
  const WindowSource source(corpus({3, 1, 8}), 4, Order::kSequential, {});
  EXPECT_EQ(tokens_of(source, 0), (std::vector<std::int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(tokens_of(source, 1), (std::vector<std::int32_t>{4, 5, 6, 7, 8}));
  EXPECT_EQ(tokens_of(source, 2), tokens_of(source, 0));  // around
}

TEST_F(SampleOrderTest, a_corpus_shorter_than_a_window_is_the_configs_fault) {
  EXPECT_THROW(WindowSource(corpus({4}), 4, Order::kSequential, {}), ConfigError);
  EXPECT_THROW(WindowSource(corpus({}), 4, Order::kShuffled, {}), ConfigError);
  try {
    WindowSource(corpus({2, 2}), 4, Order::kShuffled, {});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("tokens.bin: holds 4 tokens"), std::string::npos)
        << error.what();
  }
}

TEST_F(SampleOrderTest, a_range_of_documents_is_laid_end_to_end_alone) {
  const auto file = std::make_shared<IndexedFile>(
      token_file(counting_documents({3, 4, 6, 9})).write(folder_, "cut"));
  const Corpus middle(file, {1, 3});
  EXPECT_EQ(middle.tokens(), 10);
  const WindowSource source(middle, 3, Order::kSequential, {});
  EXPECT_EQ(source.count(), 3);
  EXPECT_EQ(tokens_of(source, 0), (std::vector<std::int32_t>{3, 4, 5, 6}));
  EXPECT_EQ(tokens_of(source, 2), (std::vector<std::int32_t>{9, 10, 11, 12}));
  EXPECT_EQ(source.describe(1, 1), file->bin_path() + ": document 2, position 0: token id 7");
  EXPECT_EQ(middle.documents(), 2);
}

TEST_F(SampleOrderTest, shuffled_takes_every_window_once_in_every_epoch) {
  for (const std::int64_t windows : {1, 2, 3, 7, 64, 257}) {
    const WindowSource source(corpus({windows * 2 + 1}), 2, Order::kShuffled, {5, 0});
    std::set<std::vector<std::int64_t>> orders;
    for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
      std::vector<std::int64_t> order;
      for (std::int64_t i = 0; i < windows; ++i)
        order.push_back(source.window_of(epoch * windows + i));
      orders.insert(order);
      std::sort(order.begin(), order.end());
      for (std::int64_t i = 0; i < windows; ++i) ASSERT_EQ(order[i], i);
    }
    if (windows > 7) {
      EXPECT_EQ(orders.size(), 4U);  // each epoch its own
    }
  }
}

TEST_F(SampleOrderTest, shuffled_depends_on_seed_and_source) {
  std::set<std::vector<std::int64_t>> orders;
  for (const std::int64_t seed : {0, 1, 2}) {
    for (const std::int64_t number : {0, 1, 2}) {
      const WindowSource source(corpus({201}), 2, Order::kShuffled, {seed, number});
      std::vector<std::int64_t> order;
      for (std::int64_t i = 0; i < 100; ++i) order.push_back(source.window_of(i));
      orders.insert(order);
    }
  }
  EXPECT_EQ(orders.size(), 9U);
}

TEST(RandomPermutation, is_a_permutation_of_any_size) {
  for (std::int64_t count = 1; count <= 300; ++count) {
    const RandomPermutation permutation(9, 4, count);
    std::vector<bool> seen(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t value = permutation(i);
      ASSERT_TRUE(value >= 0 && value < count && !seen[static_cast<std::size_t>(value)]) << count;
      seen[static_cast<std::size_t>(value)] = true;
    }
  }
}

TEST(RandomPermutation, reaches_sizes_that_no_table_would_hold) {
  constexpr std::int64_t kCount = (std::int64_t{1} << 40) + 12345;
  const RandomPermutation permutation(9, 4, kCount);
  std::set<std::int64_t> values;
  for (std::int64_t i = 0; i < 2000; ++i) {
    const std::int64_t value = permutation(kCount - 1 - i);
    EXPECT_TRUE(value >= 0 && value < kCount);
    values.insert(value);
  }
  EXPECT_EQ(values.size(), 2000U);
}

TEST(RandomPermutation, places_are_used_evenly) {
  // Over many streams each of 5 elements lands on each of 5 places about equally often: chi-square
  // with 16 degrees of freedom is below 45 but for one stream set in 7000; this set is fixed.
  constexpr std::int64_t kCount = 5, kStreams = 5000;
  std::vector<std::int64_t> hits(kCount * kCount);
  for (std::int64_t stream = 0; stream < kStreams; ++stream) {
    const RandomPermutation permutation(1, static_cast<std::uint64_t>(stream), kCount);
    for (std::int64_t i = 0; i < kCount; ++i) ++hits[i * kCount + permutation(i)];
  }
  const double expected = static_cast<double>(kStreams) / kCount;
  double chi = 0;
  for (const std::int64_t hit : hits) chi += (hit - expected) * (hit - expected) / expected;
  EXPECT_LT(chi, 45);
}

TEST(SyntheticSource, covers_the_vocabulary_and_nothing_else) {
  const SyntheticSource source(31, 7, 3, "train");
  std::vector<std::int64_t> hits(7);
  for (std::int64_t s = 0; s < 200; ++s) {
    for (const std::int32_t id : tokens_of(source, s)) {
      ASSERT_TRUE(id >= 0 && id < 7);
      ++hits[id];
    }
  }
  for (const std::int64_t count : hits) EXPECT_GT(count, 200 * 32 / 7 / 2);
  EXPECT_EQ(source.count(), SampleSource::kEndless);
}

TEST(SyntheticSource, a_sample_is_a_function_of_seed_purpose_and_number) {
  const SyntheticSource a(8, 1000, 3, "train"), b(8, 1000, 3, "train"), other(8, 1000, 4, "train"),
      purpose(8, 1000, 3, "validation");
  EXPECT_EQ(tokens_of(a, 77), tokens_of(b, 77));
  EXPECT_NE(tokens_of(a, 77), tokens_of(a, 78));
  EXPECT_NE(tokens_of(a, 77), tokens_of(other, 77));
  EXPECT_NE(tokens_of(a, 77), tokens_of(purpose, 77));
}

}  // namespace
}  // namespace trireme
