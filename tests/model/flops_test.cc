#include "model/flops.h"

#include <gtest/gtest.h>

#include "config/adapters.h"
#include "support/small_config.h"

namespace trireme {
namespace {

/// 61 x 8 embedding and head; a layer has 4 x 64 of attention, 3 x 8 x 24 of the MLP, 16 of norms.
ModelConfig small_model() {
  return model_of(R"({"model_type":"llama","hidden_size":8,"num_attention_heads":2,
      "num_hidden_layers":2,"intermediate_size":24,"vocab_size":61})");
}

TEST(Flops, count_every_weight_once_but_the_looked_up_embedding) {
  const ParameterCount count = count_parameters(small_model());
  const std::int64_t layers = 2 * (4 * 64 + 3 * 8 * 24), vocabulary = 61 * 8;
  EXPECT_EQ(count.total, layers + 2 * vocabulary + 5 * 8);
  EXPECT_EQ(count.active, count.total);
  EXPECT_EQ(count.multiplying, layers + vocabulary);
  EXPECT_EQ(model_flops_per_token(small_model(), 10), 6 * count.multiplying + 6 * 2 * 8 * 10);
}

TEST(Flops, of_a_layers_experts_those_count_that_a_token_has_chosen) {
  ModelConfig config = small_model();
  ModelParams params = declare_params(config);
  const ParameterCount dense = count_parameters(config, params);
  config.layers[1].experts = ExpertsConfig{.count = 5, .chosen = 2, .ffn = 3};
  const int block = params.block_of(params.chunks.front().blocks.back().attention.in.weight.first);
  for (int expert = 0; expert < 5; ++expert) {
    for (const Shape& shape : {Shape{3, 8}, Shape{3, 8}, Shape{8, 3}}) {
      ParamMeta meta;
      meta.shape = shape;
      meta.block = block;
      meta.view = MeshView::kExpert;
      params.metas.push_back(meta);
    }
  }
  const ParameterCount count = count_parameters(config, params);
  EXPECT_EQ(count.total, dense.total + 5 * 3 * 24);
  EXPECT_EQ(count.active, dense.active + 2 * 3 * 24);
  EXPECT_EQ(count.multiplying, dense.multiplying + 2 * 3 * 24);
}

TEST(Flops, weights_that_stand_still_count_four_times) {
  ModelConfig config = small_model();
  const ParameterCount whole = count_parameters(config);
  config.groups = {{"mlp", 1, std::nullopt, false}, {"embed", 1, std::nullopt, false}};
  const ParameterCount count = count_parameters(config);
  std::int64_t still = 0, all = 0;
  for (const ParamMeta& meta : declare_params(config).metas) {
    if (!meta.trainable) all += meta.shape.count();
    if (!meta.trainable && meta.name.find("mlp") != std::string::npos) still += meta.shape.count();
  }
  EXPECT_GT(still, 0);
  EXPECT_EQ(count.total, whole.total);
  EXPECT_EQ(count.trained, whole.total - all);
  EXPECT_EQ(model_flops_per_token(config, 10),
            model_flops_per_token(small_model(), 10) - 2 * still);
}

TEST(Flops, adapters_of_experts_multiply_with_them) {
  ModelConfig config = model_of(R"({"model_type":"mixtral","hidden_size":8,"num_attention_heads":2,
      "num_key_value_heads":2,"num_hidden_layers":2,"intermediate_size":6,"vocab_size":17,
      "num_local_experts":5,"num_experts_per_tok":2})");
  const ParameterCount whole = count_parameters(config);
  set_adapters(config, {3, 1, false, {"experts.gate_up_proj", "experts.down_proj"}});
  const ParameterCount count = count_parameters(config);
  const std::int64_t one = 3 * (8 + 12) + 3 * (6 + 8);
  EXPECT_EQ(count.trained, 2 * 5 * one);
  EXPECT_EQ(count.frozen_multiplying, whole.multiplying);
  EXPECT_EQ(count.multiplying, whole.multiplying + 2 * 2 * one);
}

TEST(Flops, below_the_head_s_adapter_alone_no_gradient_is_made) {
  ModelConfig config = model_of(R"({"model_type":"llama","hidden_size":8,"num_attention_heads":2,
      "num_hidden_layers":3,"intermediate_size":6,"vocab_size":17,"tie_word_embeddings":false})");
  const ParameterCount whole = count_parameters(config);
  const std::int64_t tokens = 5, attention = 3 * 8 * tokens;
  EXPECT_EQ(model_flops_per_token(config, tokens), 6 * (whole.multiplying + attention));
  set_adapters(config, {3, 1, false, {"lm_head"}});
  const ParameterCount count = count_parameters(config);
  const std::int64_t adapter = 3 * (8 + 17);
  EXPECT_EQ(count.trained, adapter);
  EXPECT_EQ(count.total, whole.total + adapter);
  EXPECT_EQ(model_flops_per_token(config, tokens),
            2 * (whole.multiplying + attention) + 6 * adapter);
  // Below the last layer, and in the head, which the gradient goes through.
  set_adapters(config, {3, 1, false, {"layers.2.mlp.down_proj"}});
  const std::int64_t head = 8 * 17, layer = (whole.multiplying - head) / 3;
  EXPECT_EQ(model_flops_per_token(config, tokens),
            4 * (layer + head) + 2 * 2 * layer + (6 + 2 + 2) * attention / 3 + 6 * 3 * (8 + 6));
}

// As published: 20.9 B parameters, of which 3.6 B multiply a token.
TEST(Flops, gpt_oss_20b_has_its_published_parameters) {
  const ModelConfig config =
      model_of(R"({"model_type":"gpt_oss","num_hidden_layers":24,"num_local_experts":32})");
  const ParameterCount count = count_parameters(config);
  EXPECT_EQ(count.total, 20'914'757'184);
  EXPECT_EQ(count.active, count.total - std::int64_t{24} * 28 * 24'891'840);
  EXPECT_EQ(count.multiplying, 3'607'142'400);
}

}  // namespace
}  // namespace trireme
