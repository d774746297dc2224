// Data parallelism on n ranks against one rank with the same global batch: gradients of the first
// step, moments and parameters after five.

#include <gtest/gtest.h>

#include <cmath>

#include "base/hash.h"
#include "base/random.h"
#include "support/model_fixture.h"
#include "support/mpi_test.h"
#include "train/step.h"

namespace trireme {
namespace {

constexpr std::int64_t kTokens = 19, kGlobal = 12, kSteps = 5;

ModelConfig small_model(Family family) {
  ModelConfig model;
  model.family = family;
  model.layers = 2;
  model.hidden = 24;
  model.ffn = 40;
  model.heads = model.kv_heads = 3;
  model.head_dim = 8;
  model.vocab_size = 61;
  model.max_positions = 32;
  model.tied_embeddings = true;
  if (family == Family::kGpt2) {
    model.norm = NormKind::kLayer;
    model.activation = Activation::kGeluTanh;
    model.position = PositionKind::kLearned;
    model.qkv_bias = model.attention_out_bias = model.mlp_bias = true;
  }
  return model;
}

/// Sample s of step k, the same wherever it is trained; some targets are not counted.
std::unique_ptr<OwnedBatch> make_batch(std::int64_t step, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> ids, targets;
  for (std::int64_t s = first; s < first + count; ++s) {
    const std::uint64_t key = stream_key(static_cast<std::uint64_t>(step * kGlobal + s), "sample");
    for (std::int64_t t = 0; t < kTokens; ++t) {
      ids.push_back(
          static_cast<std::int64_t>(philox(key, static_cast<std::uint64_t>(t), 0)[0] % 61));
      targets.push_back(
          (s + t) % 5 == 0
              ? -1
              : static_cast<std::int64_t>(philox(key, static_cast<std::uint64_t>(t), 1)[0] % 61));
    }
  }
  return std::make_unique<OwnedBatch>(count, kTokens, ids, targets);
}

struct Result {
  std::vector<float> first_gradients, moments, parameters;
  std::vector<double> losses;
};

std::vector<float> all_of(const Runtime& runtime,
                          TensorView (ParamStore::*kind)(ParamIndex) const) {
  std::vector<float> values;
  for (ParamIndex i = 0; i < static_cast<int>(runtime.params.metas.size()); ++i) {
    const TensorView view = (runtime.store.*kind)(i);
    values.insert(values.end(), view.as<float>(), view.as<float>() + view.count());
  }
  return values;
}

/// Five steps as data rank `rank` of `ranks`, one micro-batch a step.
Result train(Runtime& runtime, int rank, int ranks) {
  Result result;
  runtime.store.initialise(runtime.context, 5);
  Step step(runtime);
  const std::int64_t micro = kGlobal / ranks;
  for (std::int64_t k = 0; k < kSteps; ++k) {
    const auto batch = make_batch(k, rank * micro, micro);
    std::int64_t targets = batch->view.target_count;
    runtime.data->sum(std::span(&targets, 1));
    step.forward_backward({&batch->view, 1}, targets);
    double loss = step.loss_sum();
    runtime.data->sum(std::span(&loss, 1));
    result.losses.push_back(loss / static_cast<double>(targets));
    if (k == 0) {
      result.first_gradients =
          all_of(runtime,
                 static_cast<TensorView (ParamStore::*)(ParamIndex) const>(&ParamStore::gradient));
    }
    step.update(1e-3, step.gradient_norm());
  }
  result.moments = all_of(runtime, &ParamStore::exp_avg);
  const auto squares = all_of(runtime, &ParamStore::exp_avg_sq);
  result.moments.insert(result.moments.end(), squares.begin(), squares.end());
  result.parameters = all_of(runtime, &ParamStore::value);
  return result;
}

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

/// One micro-batch a step on each of `ranks` data ranks.
RuntimeOptions options_for(int ranks) {
  RuntimeOptions options;
  options.tokens = kTokens;
  options.micro = kGlobal / ranks;
  options.mesh = {1, ranks, 1, 1};
  return options;
}

class DataRanks : public testing::TestWithParam<Family> {};
INSTANTIATE_TEST_SUITE_P(families, DataRanks, testing::Values(Family::kLlama, Family::kGpt2));

TEST_P(DataRanks, gradients_and_moments_equal_those_of_one_rank) {
  Launch& launch = test_launch();
  const int ranks = launch.world().size();
  if (kGlobal % ranks != 0) GTEST_SKIP();
  RunConfig config;
  const ModelConfig model = small_model(GetParam());
  RuntimeOptions options = options_for(ranks);
  Runtime several(launch, config, model, options);
  const Result actual = train(several, launch.world().rank(), ranks);
  // One rank: every rank is alone on the data axis and computes the whole batch.
  options.micro = kGlobal;
  options.mesh = {ranks, 1, 1, 1};
  Runtime alone(launch, config, model, options);
  const Result expected = train(alone, 0, 1);

  ASSERT_EQ(alone.data->size(), 1);
  for (std::size_t k = 0; k < expected.losses.size(); ++k) {
    EXPECT_NEAR(actual.losses[k], expected.losses[k], 1e-6 * expected.losses[k])
        << "step " << k + 1;
  }
  EXPECT_LE(relative_difference(actual.first_gradients, expected.first_gradients), 5e-6);
  EXPECT_LE(relative_difference(actual.moments, expected.moments), 2e-5);
  EXPECT_LE(relative_difference(actual.parameters, expected.parameters), 2e-5);
}

TEST_P(DataRanks, every_rank_holds_the_same_bits) {
  Launch& launch = test_launch();
  const int ranks = launch.world().size();
  if (kGlobal % ranks != 0) GTEST_SKIP();
  RunConfig config;
  const ModelConfig model = small_model(GetParam());
  Runtime runtime(launch, config, model, options_for(ranks));
  const Result result = train(runtime, launch.world().rank(), ranks);
  const std::string hash = xxh3_128_hex(std::as_bytes(std::span(result.parameters)));
  for (const std::string& other : launch.world().all_gather_text(hash)) EXPECT_EQ(other, hash);
}

}  // namespace
}  // namespace trireme
