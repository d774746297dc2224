#include "dataset/blend.h"

#include <gtest/gtest.h>

#include "token_fixture.h"

namespace trireme {
namespace {

TEST(Blend, weights_are_normalised_with_numpys_bits) {
  // (w / numpy.sum(w))[0] of w[i] = 1 / (i + 1), where adding one after the other gives another
  // last bit (numpy 2.4.6)
  const std::vector<std::pair<int, double>> cases = {{25, 0.2620573794099363},
                                                     {26, 0.2594424254818771},
                                                     {120, 0.1862589928599187},
                                                     {300, 0.1591681520852471}};
  for (const auto& [count, expected] : cases) {
    std::vector<double> weights;
    for (int i = 0; i < count; ++i) weights.push_back(1.0 / (i + 1));
    EXPECT_EQ(normalized(weights).front(), expected) << count;
  }
}

TEST(Blend, takes_the_source_that_is_most_behind_the_first_of_equals) {
  // By hand, w = (1/2, 1/4, 1/4): i = 0 and 1 count as 1.
  const GreedyBlend blend({0.5, 0.25, 0.25});
  const std::vector<Draw> expected = {{0, 0}, {1, 0}, {2, 0}, {0, 1},
                                      {0, 2}, {1, 1}, {2, 1}, {0, 3}};
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(blend.at(static_cast<std::int64_t>(i)), expected[i]) << i;
}

TEST(Blend, a_sample_is_the_same_whatever_was_asked_before) {
  const std::vector<double> weights = normalized(std::vector<double>{0.3, 2.5, 0.01, 1});
  const GreedyBlend in_order(weights);
  std::vector<Draw> all;
  for (std::int64_t i = 0; i < 20000; ++i) all.push_back(in_order.at(i));
  const GreedyBlend jumping(weights);
  for (const std::int64_t i : {19999, 0, 4095, 4096, 4097, 8191, 12288, 5, 19998, 4096, 8192}) {
    EXPECT_EQ(jumping.at(i), all[static_cast<std::size_t>(i)]) << i;
  }
  std::vector<std::int64_t> counts(4);
  for (const Draw& draw : all) {
    EXPECT_EQ(draw.sample, counts[draw.source]);  // each source is read in order, nothing left out
    ++counts[draw.source];
  }
  EXPECT_EQ(jumping.taken(20000), counts);
  for (std::size_t d = 0; d < 4; ++d) EXPECT_NEAR(counts[d], 20000 * weights[d], 4);
}

TEST(Blend, once_gives_every_sample_of_every_source_and_ends) {
  const TemporaryDirectory folder;
  std::vector<std::shared_ptr<const SampleSource>> sources;
  for (const std::int64_t windows : {2, 9, 4}) {
    const std::string prefix = token_file(counting_documents({windows * 3 + 1}))
                                   .write(folder, fmt::format("w{}", windows));
    sources.push_back(std::make_shared<WindowSource>(Corpus(std::make_shared<IndexedFile>(prefix)),
                                                     3, WindowSource::Order::kSequential,
                                                     WindowSource::Shuffle{}));
  }
  const BlendSource blend(sources, {0.8, 0.1, 0.1}, BlendSource::Repeat::kOnce);
  ASSERT_EQ(blend.count(), 15);
  std::vector<std::int64_t> counts(3);
  for (std::int64_t i = 0; i < 15; ++i) {
    const Draw draw = blend.draw(i);
    EXPECT_EQ(draw.sample, counts[draw.source]++);
    EXPECT_EQ(blend.source_name(i), sources[draw.source]->source_name(0));
  }
  EXPECT_EQ(counts, (std::vector<std::int64_t>{2, 9, 4}));
  const BlendSource endless(sources, {0.8, 0.1, 0.1}, BlendSource::Repeat::kEndless);
  EXPECT_EQ(endless.draw(2).source, 0);
  EXPECT_GT(endless.draw(99).sample, 15);  // beyond its two windows: around again
}

}  // namespace
}  // namespace trireme
