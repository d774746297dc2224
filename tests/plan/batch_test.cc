#include "plan/batch.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

/// 21.7 Gop a layer for a sequence of 512 tokens.
RunConfig wide_config(std::int64_t tokens = 512) {
  RunConfig config;
  config.data.sequence_length = tokens;
  LayerConfig layer;
  layer.attention.heads = 12;
  layer.attention.kv_heads = 6;
  layer.attention.head_dim = 64;
  layer.mlp.ffn = 2048;
  config.model.layers.assign(12, layer);
  config.model.hidden = 768;
  config.model.vocab_size = 50'257;
  return config;
}

TEST(BatchOfPasses, a_micro_batch_is_cut_on_data_ranks_of_cpus_alone) {
  const ResolvedBatch batch = {8, 4, 2, 1};
  EXPECT_EQ(batch_of_passes(wide_config(), batch, 1, DeviceKind::kCpu),
            (ResolvedBatch{8, 1, 8, 1}));
  EXPECT_EQ(batch_of_passes(wide_config(), batch, 1, DeviceKind::kCuda), batch);
  EXPECT_EQ(batch_of_passes(wide_config(), batch, 2, DeviceKind::kCpu), batch);  // of another axis
  // 426 MB of a rank, twice.
  EXPECT_EQ(batch_of_passes(wide_config(), {4, 2, 1, 2}, 2, DeviceKind::kCpu),
            (ResolvedBatch{4, 1, 2, 2}));
  EXPECT_EQ(batch_of_passes(wide_config(), {4, 2, 2, 1}, 1, DeviceKind::kCpu),
            (ResolvedBatch{4, 2, 2, 1}));
  // 226 MB, often.
  EXPECT_EQ(batch_of_passes(wide_config(256), {16, 2, 1, 8}, 8, DeviceKind::kCpu),
            (ResolvedBatch{16, 2, 1, 8}));
  RunConfig other = wide_config();
  for (const std::int64_t stage : {0, 1, 2, 3}) {
    other.parallel.zero_stage = stage;
    EXPECT_EQ(batch_of_passes(other, {16, 8, 1, 2}, 2, DeviceKind::kCpu),
              (stage < 2 ? ResolvedBatch{16, 1, 8, 2} : ResolvedBatch{16, 8, 1, 2}));
  }
  other.parallel.zero_stage = 0;
  other.parallel.pipeline_schedule = "zb-h1";
  other.parallel.recompute = Recompute::kFull;
  EXPECT_EQ(batch_of_passes(other, batch, 1, DeviceKind::kCpu), (ResolvedBatch{8, 1, 8, 1}));
}

TEST(BatchOfPasses, what_is_balanced_over_a_step_stays_one_pass) {
  RunConfig config = wide_config();
  config.moe.scope = BalanceScope::kGlobal;
  EXPECT_EQ(batch_of_passes(config, {8, 8, 1, 1}, 1, DeviceKind::kCpu),
            (ResolvedBatch{8, 8, 1, 1}));
}

TEST(BatchOfPasses, passes_are_long_enough_and_divide_the_micro_batch) {
  const auto pass_of = [](const RunConfig& config, std::int64_t micro) {
    const ResolvedBatch passes = batch_of_passes(config, {micro, micro, 1, 1}, 1, DeviceKind::kCpu);
    EXPECT_EQ(passes.micro * passes.accumulation, micro);
    return passes.micro;
  };
  // 512 tokens, however many operations.
  EXPECT_EQ(pass_of(wide_config(256), 16), 2);
  EXPECT_EQ(pass_of(wide_config(256), 15), 3);
  EXPECT_EQ(pass_of(wide_config(256), 7), 7);
  EXPECT_EQ(pass_of(wide_config(256), 1), 1);
  EXPECT_EQ(pass_of(wide_config(511), 4), 2);
  // 2^34 operations, however many tokens: 10.6 M of a token.
  RunConfig narrow = wide_config(256);
  narrow.model.hidden = 384;
  for (LayerConfig& layer : narrow.model.layers) {
    layer.attention.heads = 6;
    layer.attention.kv_heads = 3;
    layer.mlp.ffn = 1024;
  }
  EXPECT_EQ(pass_of(narrow, 16), 8);
  EXPECT_EQ(pass_of(narrow, 12), 12);
  // 512 MiB, however long: of 16 samples in f32, of 24 in bf16 less, of 32 more.
  narrow.model.layers.resize(6);
  EXPECT_EQ(pass_of(narrow, 16), 16);
  EXPECT_EQ(pass_of(narrow, 32), 8);
  narrow.precision.compute = ComputePrecision::kBf16;
  EXPECT_EQ(pass_of(narrow, 24), 24);
  EXPECT_EQ(pass_of(narrow, 32), 8);
  // At once, for any number.
  EXPECT_EQ(pass_of(wide_config(256), 999'999'937), 999'999'937) << "a prime";
  EXPECT_EQ(pass_of(wide_config(256), 1'000'000'000), 2);
}

}  // namespace
}  // namespace trireme
