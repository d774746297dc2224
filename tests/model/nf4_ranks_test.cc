// A base in NF4 computes what one does whose values went through its codes, on one rank and on two
// of the tensor axis, whose parts are whole blocks.

#include <gtest/gtest.h>

#include <optional>
#include <tuple>

#include "model/model_ranks.h"

namespace trireme {
namespace {

constexpr std::int64_t kSequences = 2, kTokens = 4;

/// Each matrix may be cut in two: so many columns are two blocks.
ModelCase wide_case() {
  reference::Architecture model;
  model.layers = 2;
  model.hidden = 128;
  model.ffn = 128;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_dim = 32;
  model.vocabulary = 37;
  model.positions = 16;
  model.eps = 1e-5;
  return {"llama_of_blocks",
          R"("model_type": "llama", "vocab_size": 37, "hidden_size": 128, "num_hidden_layers": 2,
             "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 32, "max_position_embeddings": 16, "rms_norm_eps": 1e-5,
             "tie_word_embeddings": false)",
          model};
}

AdapterConfig adapters(bool dora = false) { return {2, 0.75, dora, {}}; }

struct Found {
  double loss_sum = 0;
  Gathered gradients;
};

/// Forward and backward of a batch.
void compute(RankModel& rank, const reference::Batch& batch, bool apart, Found& found) {
  const TokensOfRank tokens(batch, 0, kSequences, false);
  StageShape shape{kSequences, kTokens, 1,
                   apart ? StagePurpose::kTrainingSplit : StagePurpose::kTraining};
  const std::unique_ptr<Stage> stage = rank.stage(shape);
  stage->begin_step({&tokens.view, 1}, kSequences * kTokens);
  stage->rewind();
  stage->forward(0, 0);
  if (apart) {
    stage->backward_input(0, 0);
    stage->backward_weight(0, 0, LastMicroBatch::kYes);
  } else {
    stage->backward(0, 0, LastMicroBatch::kYes);
  }
  const double sum = stage->loss_sum();
  found.gradients.add_gradients(rank, gradients_of(rank));
  if (rank.rank.index == 0) found.loss_sum = sum;
}

/// `base`: of the store, in place of params_of's.
std::unique_ptr<Found> run(const ModelCase& of, const RankSetup& setup, bool apart,
                           const std::optional<reference::Params>& base = {}) {
  auto found = std::make_unique<Found>();
  const reference::Batch batch = random_batch(kSequences, kTokens, of.model.vocabulary, false);
  on_threads(setup.ranks, [&](Communicator& channel) {
    RankModel rank(of, {{0, of.model.layers, true, true}}, setup, channel);
    if (base) rank.load(*base);
    compute(rank, batch, apart, *found);
  });
  return found;
}

reference::Params widened(const ModelCase& of, const AdapterConfig& adapters) {
  reference::Params whole = coded_in_nf4(of, adapters, params_of(of.model));
  whole.merge(adapters_of(of, adapters));
  return whole;
}

void expect_as_widened(const ModelCase& of, RankSetup setup, bool dora = false) {
  setup.adapters = adapters(dora);
  const reference::Params base = widened(of, *setup.adapters);
  for (const auto& [compute, apart, recompute] :
       {std::tuple{DType::kF32, false, Recompute::kNone},
        std::tuple{DType::kBF16, true, Recompute::kSelective},
        std::tuple{DType::kBF16, false, Recompute::kFull}}) {
    setup.compute = compute;
    setup.recompute = recompute;
    setup.nf4 = false;
    const auto expected = run(of, setup, apart, base);
    const double without_codes = apart ? 0 : run(of, setup, apart)->loss_sum;
    setup.nf4 = true;
    SCOPED_TRACE(of.name + ", " + setup.text());
    const auto found = run(of, setup, apart);
    EXPECT_EQ(found->loss_sum, expected->loss_sum);
    EXPECT_NE(found->loss_sum, without_codes);
    EXPECT_FALSE(found->gradients.parts().empty());
    EXPECT_TRUE(found->gradients.parts() == expected->gradients.parts());
  }
}

TEST(Nf4Ranks, a_base_in_codes_has_the_bits_of_its_values) {
  for (const RankSetup& setup : setups()) {
    if (setup.ranks == 3 || setup.shares_memory) continue;
    expect_as_widened(wide_case(), setup);
    if (!setup.sequence_parallel) expect_as_widened(wide_case(), setup, true);
  }
}

/// Matrices that end within blocks, lie behind each other, or are [in, out].
TEST(Nf4Ranks, blocks_run_over_the_ends_of_rows_and_end_with_a_matrix) {
  for (const ModelCase& of : model_cases(2)) {
    if (of.name != "llama" && of.name != "qwen2" && of.name != "gpt2") continue;
    expect_as_widened(of, {});
  }
}

TEST(Nf4Ranks, two_ranks_are_one_to_rounding) {
  if (setups().size() == 1) return;  // a GPU's kernels on one thread
  RankSetup setup;
  setup.adapters = adapters();
  setup.nf4 = true;
  const auto one = run(wide_case(), setup, false);
  setup.ranks = 2;
  const auto two = run(wide_case(), setup, false);
  EXPECT_NEAR(two->loss_sum, one->loss_sum, 1e-6 * one->loss_sum);
  for (const auto& [name, values] : one->gradients.all())
    expect_near(two->gradients.tensor(name), {values.begin(), values.end()}, 1e-4, name);
}

TEST(Nf4Ranks, a_stage_counts_room_for_the_largest_weight) {
  RankSetup setup;
  setup.adapters = adapters();
  on_threads(1, [&](Communicator& channel) {
    const RankModel rank(wide_case(), {{0, 2, true, true}}, setup, channel);
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      StageShape shape{kSequences, kTokens, 1};
      const std::int64_t plain = Stage::buffer_bytes(rank.config, shape, compute);
      shape.nf4 = true;
      const auto element = static_cast<std::int64_t>(size_of(compute));
      EXPECT_EQ(Stage::buffer_bytes(rank.config, shape, compute) - plain,
                element * (2 * 128) * 128);  // gate and up
    }
  });
}

}  // namespace
}  // namespace trireme
