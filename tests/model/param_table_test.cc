#include "model/param_table.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace trireme
