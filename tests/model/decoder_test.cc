// Tokens one by one and in pieces with a cache, on 1, 2 and 3 tensor-parallel ranks, beside float64
// that sees the whole sequence.
#include "model/decoder.h"

#include <gtest/gtest.h>

#include "model/model_ranks.h"

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
        Decoder decoder(rank.context, rank.config, rank.params, rank.store, {kTokens, 2},
                        {rank.axis()});
        const auto feed = [&](std::int64_t count) {
          const std::span<const std::int32_t> ids(ids_);
          const std::span<const float> found = decoder.feed(ids.subspan(
              static_cast<std::size_t>(decoder.length()), static_cast<std::size_t>(count)));
          expect_near({found.begin(), found.end()}, expected(decoder.length() - 1), limit,
                      fmt::format("token {}", decoder.length()));
        };
        feed(5);  // in pieces of 2, 2 and 1
        feed(1);
        feed(3);
        decoder.restart();
        feed(1);
        feed(2);
      });
    }
  }
}

TEST_P(DecoderOfFamily, more_tokens_than_there_is_room_for_are_refused) {
  on_threads(1, [&](Communicator& channel) {
    RankModel rank(GetParam(), {{0, 3, true, true}}, {}, channel, StoreContents{});
    Decoder decoder(rank.context, rank.config, rank.params, rank.store, {4, 2});
    (void)decoder.feed(std::span(ids_).first(3));
    EXPECT_THROW((void)decoder.feed(std::span(ids_).first(2)), InternalError);
    EXPECT_THROW((void)decoder.feed({}), InternalError);
    EXPECT_EQ(decoder.length(), 3);
  });
}

}  // namespace
}  // namespace trireme
