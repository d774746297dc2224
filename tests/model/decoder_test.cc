// Tokens one by one and in pieces with a cache, on 1, 2 and 3 tensor-parallel ranks, beside float64
// that sees the whole sequence.
#include "model/decoder.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>

#include "model/model_ranks.h"
#include "support/feed.h"

namespace trireme {
namespace {

constexpr std::int64_t kTokens = 9;

class DecoderOfFamily : public testing::TestWithParam<ModelCase> {
 protected:
  /// Logits behind token `token`.
  [[nodiscard]] reference::Values expected(std::int64_t token) const {
    const std::int64_t from = token * model().vocabulary;
    return {all_.begin() + from, all_.begin() + from + model().vocabulary};
  }
  [[nodiscard]] const reference::Architecture& model() const { return GetParam().model; }
  /// Beyond two pages, or what learned positions allow.
  [[nodiscard]] std::int64_t long_length() const { return model().gpt2 ? model().positions : 150; }

  const reference::Batch batch_ = random_batch(1, kTokens, model().vocabulary, false);
  const std::vector<std::int32_t> ids_{batch_.ids.begin(), batch_.ids.end()};
  const reference::Values all_ = reference::logits_of(model(), params_of(model()), batch_);
};
INSTANTIATE_TEST_SUITE_P(families, DecoderOfFamily, testing::ValuesIn(model_cases(3)),
                         [](const auto& of) { return of.param.name; });

TEST_P(DecoderOfFamily, logits_equal_float64_however_tokens_are_fed) {
  for (RankSetup setup : setups()) {
    if (setup.sequence_parallel) continue;
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      setup.compute = compute;
      const double limit = compute == DType::kF32 ? 3e-6 : 6e-2;
      on_threads(setup.ranks, [&](Communicator& channel) {
        SCOPED_TRACE(setup.text());
        RankModel rank(GetParam(), {{0, 3, true, true}}, setup, channel, StoreContents{});
        Decoder decoder(rank.context, rank.config, rank.params, rank.store, {kTokens, 1, 0, 2},
                        {rank.axis()});
        const auto feed = [&](std::int64_t count) {
          const std::span<const std::int32_t> ids(ids_);
          const std::span<const float> found =
              trireme::feed(decoder, ids.subspan(static_cast<std::size_t>(decoder.length(0)),
                                                 static_cast<std::size_t>(count)));
          expect_near({found.begin(), found.end()}, expected(decoder.length(0) - 1), limit,
                      fmt::format("token {}", decoder.length(0)));
        };
        feed(5);  // in pieces of 2, 2 and 1
        feed(1);
        feed(3);
        decoder.end(0);
        feed(1);
        feed(2);
      });
    }
  }
}

TEST_P(DecoderOfFamily, adapters_of_the_head_have_the_logits_of_merged_weights) {
  if (model().tied) GTEST_SKIP() << "the head is the embedding";
  for (const bool magnitudes : {false, true}) {
    const AdapterConfig adapters{2, 0.75, magnitudes, {"lm_head"}};
    const reference::Values all = reference::logits_of(
        model(),
        merged(GetParam(), adapters, params_of(model()), adapters_of(GetParam(), adapters)),
        batch_);
    for (RankSetup setup : setups()) {
      if (setup.sequence_parallel) continue;
      setup.adapters = adapters;
      on_threads(setup.ranks, [&](Communicator& channel) {
        RankModel rank(GetParam(), {{0, 3, true, true}}, setup, channel, StoreContents{});
        Decoder decoder(rank.context, rank.config, rank.params, rank.store, {kTokens, 1, 0, 2},
                        {rank.axis()});
        const std::span<const float> found = feed(decoder, ids_);
        expect_near({found.begin(), found.end()}, {all.end() - model().vocabulary, all.end()}, 3e-6,
                    setup.text());
      });
    }
  }
}

TEST_P(DecoderOfFamily, more_tokens_than_there_is_room_for_are_refused) {
  on_threads(1, [&](Communicator& channel) {
    RankModel rank(GetParam(), {{0, 3, true, true}}, {}, channel, StoreContents{});
    Decoder decoder(rank.context, rank.config, rank.params, rank.store, {4, 1, 0, 4});
    const auto refused = [&](std::vector<Decoder::Part> parts) {
      EXPECT_THROW(decoder.feed(parts), InternalError);
    };
    const std::span<const std::int32_t> ids(ids_);
    (void)feed(decoder, ids.first(3));
    refused({{0, ids.first(2)}});
    refused({{0, {}}});
    refused({});
    EXPECT_EQ(decoder.length(0), 3);
  });
}

/// Logits behind some tokens of a sequence; {sequence, token}.
using LogitsAt = std::map<std::pair<int, std::int64_t>, std::vector<float>>;

/// Feeds sequences in an order that `seed` chooses: their first `prompt` tokens as a generator
/// would, the others one by one; sequences are `ids` turned by their number.
LogitsAt logits_of_several(RankModel& rank, std::span<const std::int32_t> ids,
                           const std::vector<std::int64_t>& prompts, std::uint64_t seed,
                           std::int64_t pages) {
  const std::int64_t length_of_all = std::ssize(ids);
  Decoder decoder(rank.context, rank.config, rank.params, rank.store,
                  {length_of_all, std::ssize(prompts), pages, 64}, {rank.axis()});
  std::mt19937_64 random(seed);
  std::vector<std::vector<std::int32_t>> sequences;
  for (std::size_t s = 0; s < prompts.size(); ++s) {
    std::vector<std::int32_t>& of = sequences.emplace_back(ids.begin(), ids.end());
    std::rotate(of.begin(), of.begin() + static_cast<std::ptrdiff_t>(3 * s), of.end());
  }
  LogitsAt found;
  const auto left = [&](std::size_t s) {
    return length_of_all - decoder.length(static_cast<int>(s));
  };
  while (true) {
    std::vector<Decoder::Part> parts;
    for (std::size_t s = 0; s < prompts.size(); ++s) {
      const auto number = static_cast<int>(s);
      const std::int64_t length = decoder.length(number);
      const std::int64_t of_prompt =
          std::min<std::int64_t>(std::min(prompts[s], length_of_all - 2) - length, 64);
      const bool alone = of_prompt >= static_cast<std::int64_t>(Decoder::kAlone);
      if (left(s) == 0 || random() % 3 == 0 || (alone && !parts.empty())) continue;
      const std::int64_t count =
          of_prompt > 0
              ? of_prompt
              : std::min<std::int64_t>(left(s), 1 + static_cast<std::int64_t>(random() % 3));
      parts.push_back({number, std::span(sequences[s])
                                   .subspan(static_cast<std::size_t>(length),
                                            static_cast<std::size_t>(count))});
      if (alone) break;
    }
    const auto whole = [](std::int64_t sum, const Decoder::Part& part) {
      return sum + std::ssize(part.ids);
    };
    while (std::accumulate(parts.begin(), parts.end(), std::int64_t{0}, whole) > 64)
      parts.pop_back();
    if (parts.size() > 1 && parts.back().ids.size() >= Decoder::kAlone) parts.pop_back();
    if (!parts.empty()) {
      decoder.feed(parts);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::span<const float> logits = decoder.logits(i);
        found[{parts[i].sequence, decoder.length(parts[i].sequence)}] = {logits.begin(),
                                                                         logits.end()};
      }
    }
    bool any = false;
    for (std::size_t s = 0; s < prompts.size(); ++s) any = any || left(s) > 0;
    if (!any) return found;
  }
}

TEST_P(DecoderOfFamily, a_sequence_has_the_bits_that_it_has_alone) {
  const reference::Batch batch = random_batch(1, long_length(), model().vocabulary, false);
  const std::vector<std::int32_t> ids(batch.ids.begin(), batch.ids.end());
  for (RankSetup setup : setups()) {
    if (setup.sequence_parallel) continue;
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      setup.compute = compute;
      setup.threads = setup.ranks == 1 ? 2 : 1;
      on_threads(setup.ranks, [&](Communicator& channel) {
        SCOPED_TRACE(setup.text());
        RankModel rank(GetParam(), {{0, 3, true, true}}, setup, channel, StoreContents{});
        const LogitsAt several = logits_of_several(rank, ids, {5, 140, 64, 31, 100}, 1, 0);
        const LogitsAt others = logits_of_several(rank, ids, {5, 140, 64, 31, 100}, 2, 40);
        const LogitsAt two = logits_of_several(rank, ids, {5, 140}, 3, 0);
        std::size_t compared = 0;
        for (const LogitsAt* of : {&others, &two}) {
          for (const auto& [at, logits] : *of) {
            const auto same = several.find(at);
            if (same == several.end()) continue;
            ++compared;
            EXPECT_TRUE(same->second == logits)
                << "sequence " << at.first << ", token " << at.second;
          }
        }
        EXPECT_GT(compared, model().gpt2 ? 15U : 150U);
      });
    }
  }
}

TEST_P(DecoderOfFamily, long_prompts_equal_float64_in_pages) {
  const reference::Batch batch = random_batch(1, long_length(), model().vocabulary, false);
  const std::vector<std::int32_t> ids(batch.ids.begin(), batch.ids.end());
  const reference::Values all = reference::logits_of(model(), params_of(model()), batch);
  on_threads(1, [&](Communicator& channel) {
    RankModel rank(GetParam(), {{0, 3, true, true}}, {}, channel, StoreContents{});
    const LogitsAt found = logits_of_several(rank, ids, {100}, 5, 0);
    for (const auto& [at, logits] : found) {
      const std::int64_t from = (at.second - 1) * model().vocabulary;
      expect_near(logits, {all.begin() + from, all.begin() + from + model().vocabulary}, 1e-5,
                  fmt::format("token {}", at.second));
    }
    EXPECT_GT(found.size(), 1U);
  });
}

TEST_P(DecoderOfFamily, a_window_keeps_no_more_than_it_sees) {
  if (model().windows.empty()) GTEST_SKIP() << "no window";
  constexpr std::int64_t kLength = 400;
  const reference::Batch batch = random_batch(1, kLength, model().vocabulary, false);
  const std::vector<std::int32_t> ids(batch.ids.begin(), batch.ids.end());
  const reference::Values all = reference::logits_of(model(), params_of(model()), batch);
  on_threads(1, [&](Communicator& channel) {
    RankModel rank(GetParam(), {{0, 3, true, true}}, {}, channel, StoreContents{});
    const DecoderShape shape{kLength, 2, 0, 140};
    Decoder decoder(rank.context, rank.config, rank.params, rank.store, shape, {rank.axis()});
    const auto feed_both = [&](std::int64_t first, std::int64_t second) {
      std::vector<Decoder::Part> parts;
      for (const auto& [sequence, count] : {std::pair(0, first), std::pair(1, second)}) {
        const auto from = static_cast<std::size_t>(decoder.length(sequence));
        if (count > 0)
          parts.push_back(
              {sequence, std::span(ids).subspan(from, static_cast<std::size_t>(count))});
      }
      decoder.feed(parts);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::int64_t at = (decoder.length(parts[i].sequence) - 1) * model().vocabulary;
        const std::span<const float> found = decoder.logits(i);
        expect_near(
            {found.begin(), found.end()}, {all.begin() + at, all.begin() + at + model().vocabulary},
            1e-5,
            fmt::format("sequence {} of {}", parts[i].sequence, decoder.length(parts[i].sequence)));
      }
    };
    feed_both(140, 0);  // alone
    feed_both(3, 100);
    feed_both(140, 0);
    feed_both(20, 63);
    feed_both(70, 70);
    for (int i = 0; i < 27; ++i) feed_both(1, 2);
    decoder.end(0);
    feed_both(130, 0);
    feed_both(1, 1);

    std::int64_t windows = 0;
    for (const LayerConfig& layer : rank.config.layers) windows += layer.attention.window > 0;
    const std::int64_t kept = 2 * 4 * windows + (3 - windows) * shape.pages_of_all();
    const std::int64_t columns = rank.config.layer(0).attention.k_size();
    EXPECT_EQ(Decoder::cache_bytes(rank.config, {0, 3}, shape, DType::kF32),
              2 * columns * 4 * (kept * 64 + kLength));
  });
}

}  // namespace
}  // namespace trireme
