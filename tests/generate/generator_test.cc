// Many sequences at once have the tokens of each alone, whatever room there is.
#include "generate/generator.h"

#include <gtest/gtest.h>

#include <random>

#include "support/model_fixture.h"

namespace trireme {
namespace {

constexpr std::int64_t kLength = 400;

class GeneratorTest : public testing::Test {
 protected:
  GeneratorTest() { model_.load(golden_path("model/llama_gqa/model.safetensors")); }

  struct Result {
    std::vector<std::vector<std::int32_t>> tokens;
    std::vector<std::size_t> ended;  // in order
    GenerationCounts counts;
  };
  Result run(std::span<const SequenceRequest> requests, DecoderShape shape,
             const std::vector<std::int64_t>& end_tokens = {}) {
    Decoder decoder(model_.context, model_.config, model_.params, model_.store, shape);
    Result result;
    result.tokens.resize(requests.size());
    GenerationCalls calls;
    calls.added = [&](std::size_t i, std::int32_t token) { result.tokens[i].push_back(token); };
    calls.ended = [&](std::size_t i) { result.ended.push_back(i); };
    result.counts = generate(decoder, requests, options_, end_tokens, calls);
    EXPECT_EQ(decoder.free_pages(), shape.pages_of_all()) << "all pages are free again";
    return result;
  }
  std::vector<SequenceRequest> requests(std::vector<std::int64_t> prompts, std::int64_t tokens) {
    std::mt19937_64 random(9);
    std::vector<SequenceRequest> all;
    for (const std::int64_t size : prompts) {
      SequenceRequest& request = all.emplace_back();
      for (std::int64_t i = 0; i < size; ++i)
        request.prompt.push_back(static_cast<std::int32_t>(
            random() % static_cast<std::uint64_t>(model_.config.vocab_size)));
      request.new_tokens = tokens;
    }
    return all;
  }

  ModelFixture model_{load_model_config(golden_path("model/llama_gqa")),
                      {1, 1, 1, StagePurpose::kEvaluation}};
  SamplingOptions options_;
};

TEST_F(GeneratorTest, many_at_once_have_the_tokens_of_each_alone) {
  const auto all = requests({3, 70, 1, 40, 33, 300, 31, 64, 5, 128}, 60);
  std::vector<std::vector<std::int32_t>> alone;
  for (const SequenceRequest& request : all)
    alone.push_back(run({&request, 1}, {kLength}).tokens.front());
  for (const std::int64_t sequences : {2, 4, 10}) {
    for (const std::int64_t pages : {std::int64_t{0}, std::int64_t{7}, std::int64_t{9}}) {
      SCOPED_TRACE(fmt::format("{} sequences, {} pages", sequences, pages));
      const Result found = run(all, {kLength, sequences, pages});
      EXPECT_EQ(found.tokens, alone);
      EXPECT_EQ(found.ended.size(), all.size());
      EXPECT_EQ(found.counts.new_tokens, 600);
      EXPECT_LE(found.counts.sequences_most, sequences);
      if (pages == 0) {
        EXPECT_EQ(found.counts.restarted, 0);
      } else if (pages == 7 && sequences > 2) {
        EXPECT_GT(found.counts.restarted, 0);
      }
    }
  }
}

TEST_F(GeneratorTest, samples_of_a_prompt_differ_and_are_those_of_it_alone) {
  std::vector<SequenceRequest> all = requests({20}, 30);
  all.resize(4, all.front());
  for (std::size_t i = 0; i < all.size(); ++i) all[i].sample = static_cast<std::int64_t>(i);
  const Result found = run(all, {kLength, 3});
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(found.tokens[i], run({&all[i], 1}, {kLength}).tokens.front());
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(found.tokens[i], found.tokens[j]);
  }
}

TEST_F(GeneratorTest, a_sequence_that_ends_makes_room_for_the_next) {
  std::vector<SequenceRequest> all = requests({10, 10, 10, 10, 10}, 8);
  all[0].new_tokens = 2;
  all[1].new_tokens = 40;
  all[3].new_tokens = 0;
  const Result found = run(all, {kLength, 2});
  EXPECT_EQ(found.tokens[3].size(), 0U);
  EXPECT_EQ(found.ended.back(), 1U) << "the others do not wait for the longest";
  EXPECT_EQ(found.counts.sequences_most, 2);
  // An end token ends one and not the others.
  const std::int64_t end = found.tokens[1][5];
  const Result ended = run(all, {kLength, 5}, {end});
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& whole = found.tokens[i];
    const auto at = std::find(whole.begin(), whole.end(), end);
    const std::vector<std::int32_t> expected(whole.begin(), at == whole.end() ? at : at + 1);
    EXPECT_EQ(ended.tokens[i], expected);
  }
}

}  // namespace
}  // namespace trireme
