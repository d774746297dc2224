#include "model/param_table.h"

#include <gtest/gtest.h>

#include "config/adapters.h"
#include "support/small_config.h"

namespace trireme {
namespace {

const ParamMeta* find(const ModelParams& params, const std::string& name) {
  for (const ParamMeta& meta : params.metas)
    if (meta.name == name) return &meta;
  return nullptr;
}

TEST(ParamTable, norms_begin_where_they_change_nothing) {
  const ModelParams llama =
      declare_params(model_of(R"({"model_type":"llama","num_hidden_layers":1,"hidden_size":64})"));
  const ModelParams gemma = declare_params(
      model_of(R"({"model_type":"gemma3_text","num_hidden_layers":1,"hidden_size":64})"));
  EXPECT_EQ(find(llama, "model.norm.weight")->init.kind, InitKind::kOnes);
  for (const char* name :
       {"model.norm.weight", "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight", "model.layers.0.self_attn.q_norm.weight",
        "model.layers.0.pre_feedforward_layernorm.weight",
        "model.layers.0.post_feedforward_layernorm.weight"}) {
    ASSERT_NE(find(gemma, name), nullptr) << name;
    EXPECT_EQ(find(gemma, name)->init.kind, InitKind::kZeros) << name;
  }
}

TEST(ParamTable, a_norm_of_all_heads_is_cut_with_them) {
  const ModelParams params = declare_params(model_of(
      R"({"model_type":"olmo2","num_hidden_layers":1,"hidden_size":64,"num_attention_heads":8,
          "num_key_value_heads":2})"));
  EXPECT_EQ(find(params, "model.layers.0.input_layernorm.weight"), nullptr);
  const ParamMeta& q = *find(params, "model.layers.0.self_attn.q_norm.weight");
  const ParamMeta& k = *find(params, "model.layers.0.self_attn.k_norm.weight");
  EXPECT_EQ(q.shape, Shape({64}));
  EXPECT_EQ(k.shape, Shape({16}));
  EXPECT_EQ(q.cut.segments.front().units, 8);
  EXPECT_EQ(k.cut.segments.front().units, 2);
  EXPECT_EQ(q.partial, TensorPartial::kNever);
  EXPECT_FALSE(q.decay);
  EXPECT_EQ(find(params, "model.layers.0.post_attention_layernorm.weight")->partial,
            TensorPartial::kWithTokens);
}

TEST(ParamTable, adapters_of_experts_are_cut_as_their_products) {
  ModelConfig config = model_of(
      R"({"model_type":"mixtral","num_hidden_layers":1,"hidden_size":64,"num_attention_heads":8,
          "intermediate_size":24,"num_local_experts":4})");
  set_adapters(config, {3, 1, false, {"experts.gate_up_proj", "experts.down_proj"}});
  const std::vector<ExpertPlaces> places = expert_places(config, 2);
  const ChunkRange whole = whole_model(config);
  const ModelParams params = declare_params(config, {&whole, 1}, {{2, 1}, &places});
  const std::string prefix = "model.layers.0.mlp.experts.";
  EXPECT_EQ(find(params, prefix + "1.down_proj.lora_A.weight"), nullptr) << "of the other rank";
  const auto expect = [&](const std::string& name, const Shape& shape, int cut_dim) {
    const ParamMeta* meta = find(params, prefix + "3." + name);
    ASSERT_NE(meta, nullptr) << name;
    EXPECT_EQ(meta->shape, shape) << name;
    EXPECT_EQ(meta->view, MeshView::kExpert);
    EXPECT_TRUE(meta->trainable && !meta->base);
    EXPECT_EQ(meta->cut.given() ? meta->cut.dim : -1, cut_dim) << name;
    EXPECT_EQ(meta->partial, cut_dim < 0 ? TensorPartial::kWithHeads : TensorPartial::kNever);
  };
  expect("gate_up_proj.lora_A.weight", {3, 64}, -1);
  expect("gate_up_proj.lora_B.weight", {48, 3}, 0);
  expect("down_proj.lora_A.weight", {3, 24}, 1);
  expect("down_proj.lora_B.weight", {64, 3}, -1);
  EXPECT_EQ(find(params, prefix + "3.gate_up_proj.lora_B.weight")->cut.segments.size(), 2U);
}

TEST(ParamTable, the_head_s_adapter_is_cut_by_rows_as_the_head_and_nothing_below_is_trained) {
  ModelConfig config = model_of(R"({"model_type":"llama","num_hidden_layers":2,"hidden_size":64,
      "vocab_size":307,"tie_word_embeddings":false})");
  set_adapters(config, {3, 1, true, {"lm_head"}});
  const ModelParams params = declare_params(config);
  const std::int64_t vocabulary = config.vocab_size;
  const ParamMeta &head = *find(params, "lm_head.weight"),
                  &a = *find(params, "lm_head.lora_A.weight"),
                  &b = *find(params, "lm_head.lora_B.weight"),
                  &m = *find(params, "lm_head.lora_magnitude_vector");
  EXPECT_EQ(a.shape, (Shape{3, config.hidden}));
  EXPECT_EQ(a.partial, TensorPartial::kWithHeads);
  EXPECT_EQ(b.shape, (Shape{vocabulary, 3}));
  EXPECT_EQ(b.row_alignment, head.row_alignment);
  EXPECT_EQ(m.shape, Shape{vocabulary});
  for (const ParamMeta* meta : {&a, &b, &m}) {
    EXPECT_TRUE(meta->trainable);
    EXPECT_EQ(meta->block, head.block);
  }
  for (const AxisRank rank : {AxisRank{3, 0}, AxisRank{3, 2}}) {
    const std::int64_t rows = local_shape(head.shape, head.cut, rank)[0];
    EXPECT_EQ(local_shape(a.shape, a.cut, rank), a.shape);
    EXPECT_EQ(local_shape(b.shape, b.cut, rank)[0], rows);
    EXPECT_EQ(local_shape(m.shape, m.cut, rank)[0], rows);
  }
  EXPECT_EQ(std::count_if(params.metas.begin(), params.metas.end(),
                          [](const ParamMeta& meta) { return meta.trainable; }),
            3);
  EXPECT_EQ(params.first_trained(whole_model(config)), config.layer_count());
}

TEST(ParamTable, groups_are_the_first_that_match_of_what_is_trained) {
  ModelConfig config = model_of(R"({"model_type":"gpt2","n_embd":64,"n_head":4,"n_layer":2,
      "vocab_size":256})");
  config.groups = {
      {"wte", 1, std::nullopt, false}, {"h.0.*ln_", 0.5, 0.25}, {"ln_", 2, std::nullopt}};
  const ModelParams params = declare_params(config);
  EXPECT_FALSE(find(params, "transformer.wte.weight")->trainable);
  EXPECT_FALSE(find(params, "transformer.wte.weight (head)")->trainable) << "it is the same";
  const ParamMeta &first = *find(params, "transformer.h.0.ln_2.bias"),
                  &second = *find(params, "transformer.h.1.ln_2.bias"),
                  &other = *find(params, "transformer.wpe.weight");
  EXPECT_EQ(first.lr_scale, 0.5);
  EXPECT_EQ(first.weight_decay, 0.25);
  EXPECT_EQ(second.lr_scale, 2);
  EXPECT_EQ(second.weight_decay, std::nullopt);
  EXPECT_EQ(other.lr_scale, 1);
  EXPECT_TRUE(first.trainable && second.trainable && other.trainable && !first.base);
  // Beside adapters the base stands still whatever a group says.
  set_adapters(config, {3, 1, false, {"c_fc"}});
  config.groups = {{"*", 3, std::nullopt}};
  const ModelParams adapted = declare_params(config);
  EXPECT_FALSE(find(adapted, "transformer.wpe.weight")->trainable);
  EXPECT_EQ(find(adapted, "transformer.h.0.mlp.c_fc.lora_B.weight")->lr_scale, 3);
}

TEST(ParamTable, routers_and_gates_have_no_adapters) {
  ModelConfig config = model_of(
      R"({"model_type":"qwen2_moe","num_hidden_layers":1,"hidden_size":64,"num_attention_heads":8,
          "num_key_value_heads":8,"num_experts":4})");
  set_adapters(config, {2, 1, false, {}});
  for (const ParamMeta& meta : declare_params(config).metas) {
    if (meta.base) continue;
    EXPECT_EQ(meta.name.find("gate."), std::string::npos) << meta.name;
    EXPECT_EQ(meta.name.find(".experts."), std::string::npos) << meta.name;
    EXPECT_EQ(meta.name.find("shared_expert_gate"), std::string::npos) << meta.name;
  }
}

}  // namespace
}  // namespace trireme
