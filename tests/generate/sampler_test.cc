#include "generate/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "support/golden.h"

namespace trireme {
namespace {

TEST(Sampler, filters_keep_what_transformers_keeps) {
  const Json golden = read_golden_json("generation/filters.json");
  int settings = 0;
  for (const Json& setting : golden.find("settings")->as_array()) {
    SCOPED_TRACE(setting.dump().substr(0, 100));
    std::vector<float> logits;
    for (const double logit :
         flat_reals(*golden.find("logits")->find(setting.find("logits")->as_string()))) {
      logits.push_back(static_cast<float>(logit));
    }
    SamplingOptions options;
    options.temperature = setting.find("temperature")->as_double();
    options.top_k = setting.find("top_k")->as_integer();
    options.top_p = setting.find("top_p")->as_double();

    const std::vector<Candidate> candidates = filter_candidates(logits, options);

    std::map<std::int64_t, double> expected;
    const auto ids = flat_integers(*setting.find("ids"));
    const auto probabilities = flat_reals(*setting.find("probabilities"));
    for (std::size_t i = 0; i < ids.size(); ++i) expected[ids[i]] = probabilities[i];
    ASSERT_EQ(candidates.size(), expected.size());
    for (const Candidate& candidate : candidates) {
      ASSERT_TRUE(expected.contains(candidate.id)) << candidate.id;
      EXPECT_NEAR(candidate.probability, expected[candidate.id], 1e-6);
    }
    ++settings;
  }
  EXPECT_EQ(settings, 21);
}

TEST(Sampler, temperature_zero_takes_the_largest_and_of_equals_the_first) {
  const std::vector<float> logits = {1, 3, 3, 2};
  SamplingOptions options;
  options.temperature = 0;
  EXPECT_EQ(sample_token(logits, options, {}), 1);
}

TEST(Sampler, draws_follow_the_probabilities_and_repeat_for_a_seed) {
  const std::vector<float> logits = {std::log(0.7F), std::log(0.2F), std::log(0.1F)};
  const SamplingOptions options;
  int counts[3] = {};
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const std::int32_t token = sample_token(logits, options, {0, static_cast<std::int64_t>(i)});
    EXPECT_EQ(token, sample_token(logits, options, {0, static_cast<std::int64_t>(i)}));
    ++counts[token];
  }
  EXPECT_NEAR(counts[0], 14000, 300);
  EXPECT_NEAR(counts[1], 4000, 250);
}

TEST(Sampler, logits_that_are_no_numbers_are_refused_where_that_is_asked) {
  const float logits[] = {1, NAN, 2};
  const float far[] = {1, -INFINITY, 2};
  for (const double temperature : {0.0, 1.0}) {
    SamplingOptions options;
    options.temperature = temperature;
    EXPECT_NO_THROW(sample_token(logits, options, {}));
    options.numbers_alone = true;
    EXPECT_THROW(sample_token(logits, options, {}), DataError);
    EXPECT_NO_THROW(sample_token(far, options, {}));
  }
}

}  // namespace
}  // namespace trireme
