#include "config/adapters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "config/support.h"

namespace trireme {
namespace {

const Problem* fault_of(const LoadedConfig& loaded, std::string_view path) {
  const auto at = std::find_if(loaded.problems.begin(), loaded.problems.end(),
                               [&](const Problem& problem) { return problem.path == path; });
  return at == loaded.problems.end() ? nullptr : &*at;
}

LoadedConfig load_lora(const std::vector<std::string>& more) {
  std::vector<std::string> all = {"lora.rank=8", "init.weights=somewhere"};
  all.insert(all.end(), more.begin(), more.end());
  return load_with(all);
}

TEST(Adapters, every_product_of_the_layers_has_one_by_default) {
  const LoadedConfig loaded = load_lora({});
  ASSERT_TRUE(loaded.config.model.adapters.has_value());
  for (const LayerConfig& layer : loaded.config.model.layers)
    EXPECT_EQ(layer.adapters, (AdapterRanks{24, 0, 0, 8, 16, 8}));
}

TEST(Adapters, targets_are_ends_of_names) {
  const LoadedConfig loaded =
      load_lora({R"(lora.targets=["v_proj", "layers.1.mlp.down_proj", "self_attn.o_proj"])"});
  EXPECT_EQ(loaded.config.model.layer(0).adapters, (AdapterRanks{8, 0, 0, 8, 0, 0}));
  EXPECT_EQ(loaded.config.model.layer(1).adapters, (AdapterRanks{8, 0, 0, 8, 0, 8}));
}

TEST(Adapters, a_target_that_the_model_lacks_is_told_with_those_that_it_has) {
  const LoadedConfig loaded = load_lora({R"(lora.targets=["q_porj", "roj"])"});
  const Problem* fault = fault_of(loaded, "lora.targets");
  ASSERT_NE(fault, nullptr);
  EXPECT_EQ(fault->nearest, "q_proj");
  EXPECT_NE(fault->legal.find("gate_proj, up_proj, down_proj"), std::string::npos);
  EXPECT_EQ(std::count_if(loaded.problems.begin(), loaded.problems.end(),
                          [](const Problem& each) { return each.path == "lora.targets"; }),
            2);
}

TEST(Adapters, the_head_has_one_where_a_target_names_it) {
  EXPECT_EQ(load_lora({}).config.model.head_adapter_rank, 0);
  const LoadedConfig alone = load_lora({R"(lora.targets=["lm_head"])"});
  EXPECT_TRUE(alone.problems.empty()) << format_problems(alone.problems);
  EXPECT_EQ(alone.config.model.head_adapter_rank, 8);
  EXPECT_EQ(first_trained_layer(alone.config.model), alone.config.model.layer_count());
  const LoadedConfig beside = load_lora({R"(lora.targets=["v_proj", "lm_head"])"});
  EXPECT_EQ(beside.config.model.layer(1).adapters, (AdapterRanks{8, 0, 0, 0, 0, 0}));
  EXPECT_EQ(beside.config.model.head_adapter_rank, 8);
  EXPECT_EQ(first_trained_layer(beside.config.model), 0);
}

TEST(Adapters, a_head_that_is_the_embedding_has_none) {
  const LoadedConfig tied =
      load_lora({"model.tie_word_embeddings=true", R"(lora.targets=["q_proj", "lm_head"])"});
  const Problem* fault = fault_of(tied, "lora.targets");
  ASSERT_NE(fault, nullptr);
  EXPECT_EQ(fault->found, R"("lm_head")");
  EXPECT_NE(fault->message.find("the embedding"), std::string::npos) << fault->message;
  EXPECT_EQ(fault->legal.find("lm_head"), std::string::npos) << fault->legal;
}

/// Overrides that make the model a Mixture of experts, but for its first layer.
std::vector<std::string> with_experts(std::vector<std::string> more) {
  for (const char* key : {"model_type=qwen3_moe", "num_experts=4", "num_experts_per_tok=2",
                          "moe_intermediate_size=16", "mlp_only_layers=[0]"})
    more.push_back(std::string("model.") + key);
  return more;
}

TEST(Adapters, experts_have_one_where_a_target_names_them) {
  const auto ranks = [](const std::string& targets) {
    return load_lora(with_experts({"lora.targets=" + targets})).config.model.layer(1).adapters;
  };
  EXPECT_EQ(ranks("[]"), (AdapterRanks{24, 0, 0, 8}));
  EXPECT_EQ(ranks(R"(["q_proj", "experts.gate_up_proj"])"), (AdapterRanks{8, 0, 0, 0, 0, 0, 8, 0}));
  EXPECT_EQ(ranks(R"(["layers.1.mlp.experts.down_proj"])"), (AdapterRanks{0, 0, 0, 0, 0, 0, 0, 8}));
  const LoadedConfig dense = load_lora(with_experts({R"(lora.targets=["down_proj"])"}));
  EXPECT_EQ(dense.config.model.layer(0).adapters, (AdapterRanks{0, 0, 0, 0, 0, 8}));
  EXPECT_EQ(dense.config.model.layer(1).adapters, AdapterRanks());
  const LoadedConfig unknown = load_lora(with_experts({R"(lora.targets=["gate_up_proj"])"}));
  ASSERT_NE(fault_of(unknown, "lora.targets"), nullptr);
  EXPECT_NE(fault_of(unknown, "lora.targets")->legal.find("experts.gate_up_proj"),
            std::string::npos);
}

TEST(Adapters, what_peft_has_not_beside_experts_is_a_fault) {
  const std::string experts = R"(lora.targets=["experts.down_proj"])";
  EXPECT_NE(fault_of(load_lora(with_experts({experts, "lora.dora=true"})), "lora.dora"), nullptr);
  EXPECT_NE(fault_of(load_lora(with_experts({experts, "lora.dropout=0.1"})), "lora.dropout"),
            nullptr);
  EXPECT_EQ(fault_of(load_lora(with_experts({"lora.dora=true"})), "lora.dora"), nullptr);
  EXPECT_EQ(fault_of(load_lora(with_experts({"lora.dropout=0.1"})), "lora.dropout"), nullptr);
}

TEST(Adapters, scales_follow_rank_and_alpha) {
  EXPECT_EQ(load_lora({}).config.lora.scale(), 1);
  EXPECT_EQ(load_lora({"lora.alpha=32"}).config.lora.scale(), 4);
  EXPECT_DOUBLE_EQ(load_lora({"lora.alpha=32", "lora.rslora=true"}).config.lora.scale(),
                   32 / std::sqrt(8.0));
}

TEST(Adapters, what_contradicts_is_a_fault) {
  EXPECT_NE(fault_of(load_with({"lora.alpha=8"}), "lora.rank"), nullptr);
  EXPECT_NE(fault_of(load_with({"init.adapter=there"}), "lora.rank"), nullptr);
  EXPECT_NE(fault_of(load_with({"lora.rank=8"}), "init.weights"), nullptr);
  EXPECT_NE(fault_of(load_lora({"lora.base=fp32", "precision.compute=bf16"}), "lora.base"),
            nullptr);
  EXPECT_NE(fault_of(load_lora({"lora.base=nf4", "precision.compute=fp8"}), "lora.base"), nullptr);
}

}  // namespace
}  // namespace trireme
