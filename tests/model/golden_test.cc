// The model against transformers in float64, tensor by tensor.

#include <gtest/gtest.h>

#include <cmath>

#include "model/decoder.h"
#include "support/feed.h"
#include "support/model_fixture.h"

namespace trireme {
namespace {

/// Gradients of every parameter; in GPT-2's fused bias the key part is zero in theory, so it is
/// compared as a whole.
void expect_gradients(ModelFixture& model, const ModelGolden& golden) {
  std::size_t compared = 0;
  for (ParamIndex index = 0; index < static_cast<int>(model.params.metas.size()); ++index) {
    const ParamMeta& param = model.params.metas[static_cast<std::size_t>(index)];
    if (!model.store.has_value(index)) continue;  // added to the embedding's
    if (!param.trainable) continue;
    ++compared;
    const std::string& name = param.name;
    ASSERT_TRUE(golden.gradients.contains(name)) << name;
    EXPECT_LE(gradient_error(model.gradient(index), golden.gradients.at(name).values,
                             golden.gradient_norm),
              1)
        << name;
  }
  EXPECT_EQ(compared, golden.gradients.size());
}

class ModelGoldenCase : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(all, ModelGoldenCase, testing::ValuesIn(golden_model_cases()),
                         [](const auto& of) { return of.param; });

TEST_P(ModelGoldenCase, loss_and_gradients_equal_float64) {
  const ModelGolden golden = read_model_golden(GetParam());
  const OwnedBatch batch(golden.batch, golden.tokens, golden.input_ids, golden.targets);
  for (const int threads : {1, 3}) {
    ModelFixture model(load_model_config(golden.directory), {golden.batch, golden.tokens},
                       DType::kF32, threads);
    model.load(golden.directory / "model.safetensors");

    const double loss = model.run({&batch.view, 1});

    EXPECT_NEAR(loss, golden.loss, 1e-6 * golden.loss);
    expect_gradients(model, golden);
    EXPECT_NEAR(model.stage.evaluate(batch.view) / static_cast<double>(batch.view.target_count),
                loss, 1e-12);
  }
}

TEST_P(ModelGoldenCase, b_and_w_apart_give_the_bits_of_bw) {
  const ModelGolden golden = read_model_golden(GetParam());
  const OwnedBatch batch(golden.batch, golden.tokens, golden.input_ids, golden.targets);
  const std::vector<MicroBatch> batches(3, batch.view);
  ModelFixture fused(load_model_config(golden.directory), {golden.batch, golden.tokens});
  fused.load(golden.directory / "model.safetensors");
  const double fused_loss = fused.run(batches);
  constexpr auto F = ActionKind::kForward, B = ActionKind::kBackwardInput,
                 W = ActionKind::kBackwardWeight, BW = ActionKind::kBackward,
                 R = ActionKind::kRecompute;
  // W as late as it may be; two that wait for W in turns; one B with its W at once.
  const std::vector<Action> orders[] = {
      {{F, 0, 0},
       {F, 0, 1},
       {F, 0, 2},
       {B, 0, 0},
       {B, 0, 1},
       {B, 0, 2},
       {W, 0, 0},
       {W, 0, 1},
       {W, 0, 2}},
      {{F, 0, 0},
       {F, 0, 1},
       {B, 0, 0},
       {F, 0, 2},
       {B, 0, 1},
       {W, 0, 0},
       {B, 0, 2},
       {W, 0, 1},
       {W, 0, 2}},
      {{F, 0, 0}, {F, 0, 1}, {BW, 0, 0}, {B, 0, 1}, {F, 0, 2}, {W, 0, 1}, {BW, 0, 2}}};
  // The same with R: some before B, one long before, two at once; attention's output of the third
  // is kept for W while the fourth's is made.
  const std::vector<Action> with_r[] = {{{F, 0, 0},
                                         {F, 0, 1},
                                         {R, 0, 1},
                                         {F, 0, 2},
                                         {B, 0, 0},
                                         {B, 0, 1},
                                         {R, 0, 2},
                                         {W, 0, 0},
                                         {B, 0, 2},
                                         {W, 0, 1},
                                         {W, 0, 2}},
                                        {{F, 0, 0},
                                         {F, 0, 1},
                                         {R, 0, 0},
                                         {R, 0, 1},
                                         {BW, 0, 0},
                                         {B, 0, 1},
                                         {F, 0, 2},
                                         {R, 0, 2},
                                         {W, 0, 1},
                                         {BW, 0, 2}}};
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    std::vector<std::vector<Action>> all(std::begin(orders), std::end(orders));
    const bool again =
        recompute == Recompute::kFull || (recompute == Recompute::kSelective &&
                                          fused.config.layer(0).attention.qk_norm != QkNorm::kNone);
    if (again) all.insert(all.end(), std::begin(with_r), std::end(with_r));
    for (const std::vector<Action>& order : all) {
      SCOPED_TRACE(testing::Message() << "recompute " << static_cast<int>(recompute) << ", order "
                                      << &order - all.data());
      Schedule schedule;
      schedule.ranks = {order};
      StageShape shape{golden.batch, golden.tokens, 1, StagePurpose::kTrainingSplit};
      shape.recompute = recompute;
      shape.chunks = chunks_of(schedule, {whole_model(fused.config)});
      ModelFixture split(load_model_config(golden.directory), shape);
      split.load(golden.directory / "model.safetensors");
      split.run(batches, schedule);  // what B and the activations have exchanged stays so
      EXPECT_EQ(fused_loss, split.run(batches, schedule));
      for (ParamIndex index = 0; index < static_cast<int>(fused.params.metas.size()); ++index) {
        const auto a = fused.gradient(index), b = split.gradient(index);
        EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin()))
            << fused.params.metas[static_cast<std::size_t>(index)].name;
      }
    }
  }
}

// What W needs lies where B has read: a micro-batch that waits takes the gradients of the stream
// (two), the MLP's activation, the sums of two norms and, before the first layer, one more of the
// stream.
TEST(ModelStage, a_micro_batch_that_waits_for_w_takes_little_beside_its_activations) {
  const ModelGolden golden = read_model_golden("llama_gqa");
  const ModelConfig config = load_model_config(golden.directory);
  const auto bytes = [&](int waiting, Recompute recompute) {
    StageShape shape{golden.batch, golden.tokens, 1, StagePurpose::kTrainingSplit};
    shape.recompute = recompute;
    shape.chunks = {lone_chunk(whole_model(config), 4, waiting)};
    return Stage::buffer_bytes(config, shape, DType::kF32);
  };
  const std::int64_t row = 4 * golden.batch * golden.tokens;
  const std::int64_t norms = 2 * 4 * config.hidden * (config.norm.kind == NormKind::kLayer ? 2 : 1);
  const std::int64_t layer = row * (2 * config.hidden + config.layer(0).mlp.ffn) + norms;
  const std::int64_t set = config.layer_count() * layer + row * config.hidden;
  EXPECT_NEAR(static_cast<double>(bytes(4, Recompute::kNone) - bytes(1, Recompute::kNone)),
              3.0 * static_cast<double>(set), 4096);
  EXPECT_GT(bytes(4, Recompute::kFull) - bytes(1, Recompute::kFull), 3 * set);
}

TEST_P(ModelGoldenCase, logits_with_a_cache_equal_float64) {
  const ModelGolden golden = read_model_golden(GetParam());
  ModelFixture model(load_model_config(golden.directory), {1, 1, 1, StagePurpose::kEvaluation});
  model.load(golden.directory / "model.safetensors");
  const std::int64_t vocab = model.config.vocab_size;
  for (std::int64_t row = 0; row < golden.batch; ++row) {
    std::vector<std::int32_t> ids(golden.input_ids.begin() + row * golden.tokens,
                                  golden.input_ids.begin() + (row + 1) * golden.tokens);
    Decoder decoder(model.context, model.config, model.params, model.store,
                    {golden.tokens, 1, 0, 8});
    const std::span<const std::int32_t> all(ids);
    // A prompt in chunks of 8, then one token at a time.
    for (const std::int64_t last : {golden.tokens - 2, golden.tokens - 1}) {
      const auto logits = last == golden.tokens - 2
                              ? feed(decoder, all.first(static_cast<std::size_t>(last) + 1))
                              : feed(decoder, all.subspan(static_cast<std::size_t>(last), 1));
      const std::int64_t from = (row * 2 + last - (golden.tokens - 2)) * vocab;
      const std::span<const double> expected(golden.logits.values.data() + from,
                                             static_cast<std::size_t>(vocab));
      EXPECT_LE(relative_error_max(logits, expected), 5e-6)
          << "row " << row << ", position " << last;
    }
  }
}

// Of latents a prompt expands its own, a later part of it what the cache has too, and a token by
// itself meets the cache as it lies. Sinks are joined in each of these ways too.
TEST(LongPrompt, has_the_logits_of_its_tokens_fed_otherwise) {
  constexpr std::int64_t kTokens = 300;
  for (const char* name : {"deepseek_v3", "deepseek_v3_plain", "gpt_oss"}) {
    const ModelGolden golden = read_model_golden(name);
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      ModelFixture model(load_model_config(golden.directory), {1, 1, 1, StagePurpose::kEvaluation},
                         compute);
      model.load(golden.directory / "model.safetensors");
      std::vector<std::int32_t> ids(kTokens);
      for (std::int64_t i = 0; i < kTokens; ++i)
        ids[static_cast<std::size_t>(i)] =
            narrow<std::int32_t>((i * i * 7 + 3 * i) % model.config.vocab_size);
      const auto logits = [&](std::int64_t rows, std::int64_t prompt) {
        Decoder decoder(model.context, model.config, model.params, model.store,
                        {kTokens, 1, 0, rows});
        const std::span<const std::int32_t> all(ids);
        if (prompt > 0) (void)feed(decoder, all.first(static_cast<std::size_t>(prompt)));
        const auto found = feed(decoder, all.subspan(static_cast<std::size_t>(prompt)));
        return std::vector<double>(found.begin(), found.end());
      };
      const std::vector<double> whole = logits(kTokens, 0);
      const double limit = compute == DType::kF32 ? 5e-6 : 6e-2;
      for (const auto& [rows, prompt] :
           {std::pair<std::int64_t, std::int64_t>{kTokens, 140}, {130, 0}, {130, 267}, {11, 0}}) {
        const std::vector<double> found = logits(rows, prompt);
        EXPECT_LE(relative_error_max(std::vector<float>(found.begin(), found.end()), whole), limit)
            << name << ", " << rows << " rows, a prompt of " << prompt;
      }
    }
  }
}

TEST_P(ModelGoldenCase, bf16_stays_near_float64) {
  const ModelGolden golden = read_model_golden(GetParam());
  const OwnedBatch batch(golden.batch, golden.tokens, golden.input_ids, golden.targets);
  ModelFixture model(load_model_config(golden.directory), {golden.batch, golden.tokens},
                     DType::kBF16);
  model.load(golden.directory / "model.safetensors");

  const double loss = model.run({&batch.view, 1});

  EXPECT_NEAR(loss, golden.loss, 1e-2 * golden.loss);
  double difference = 0;
  for (ParamIndex index = 0; index < static_cast<int>(model.params.metas.size()); ++index) {
    const ParamMeta& param = model.params.metas[static_cast<std::size_t>(index)];
    if (!model.store.has_value(index) || !param.trainable) continue;
    const auto& expected = golden.gradients.at(param.name).values;
    const auto actual = model.gradient(index);
    for (std::size_t i = 0; i < expected.size(); ++i)
      difference += std::pow(actual[i] - expected[i], 2);
  }
  // Of 111 tokens a few choose other experts, as in PyTorch: there up to 0.19.
  const double bound = model.config.has_experts() ? 0.25 : 0.04;
  EXPECT_LE(std::sqrt(difference), bound * golden.gradient_norm);
}

class DocumentMaskCase : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(all, DocumentMaskCase,
                         testing::Values("llama_rope_llama3", "gpt2_untied"));

TEST_P(DocumentMaskCase, loss_and_gradients_equal_float64) {
  const DocumentMaskGolden golden = read_document_mask_golden(GetParam());
  OwnedBatch batch(golden.batch, golden.tokens, golden.input_ids, golden.targets);
  batch.set_documents(golden.document_starts);
  ModelFixture model(load_model_config(golden.directory), {golden.batch, golden.tokens});
  model.load(golden.directory / "model.safetensors");

  const double loss = model.run({&batch.view, 1});

  EXPECT_NEAR(loss, golden.loss, 1e-6 * golden.loss);
  expect_gradients(model, golden);
}

}  // namespace
}  // namespace trireme
