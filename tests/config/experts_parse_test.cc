#include "config/experts_parse.h"

#include <gtest/gtest.h>

#include "read_keys.h"

namespace trireme {
namespace {

TEST(ExpertsParse, what_a_family_with_experts_always_has) {
  const ModelConfig mixtral = legal(R"({"model_type":"mixtral"})");
  EXPECT_TRUE(mixtral.layer(0).experts->normalized);
  EXPECT_EQ(mixtral.layer(0).attention.rope->theta, 1e6);
  const ModelConfig olmoe = legal(R"({"model_type":"olmoe"})");
  EXPECT_EQ(olmoe.layer(0).attention.qk_norm, QkNorm::kProjection);
  EXPECT_EQ(olmoe.layer(0).norm_place, NormPlace::kBefore);
  EXPECT_EQ(legal(R"({"model_type":"qwen3_moe"})").layer(0).attention.qk_norm, QkNorm::kHeads);
  EXPECT_EQ(legal(R"({"model_type":"qwen2_moe"})").layer(0).attention.qk_norm, QkNorm::kNone);
  for (const ModelConfig& model : {mixtral, olmoe}) {
    const ExpertsConfig& experts = *model.layer(0).experts;
    EXPECT_FALSE(experts.sigmoid || experts.has_bias || experts.shared_gate);
    EXPECT_EQ(experts.groups, 1);
    EXPECT_EQ(experts.scale, 1);
  }
}

TEST(ExpertsParse, the_number_of_experts_has_two_names) {
  for (const char* type : {"qwen2_moe", "qwen3_moe", "mixtral", "olmoe"}) {
    for (const char* key : {"num_experts", "num_local_experts"}) {
      const ModelConfig model = legal(fmt::format(R"({{"model_type":"{}","{}":33}})", type, key));
      EXPECT_EQ(model.layer(0).experts->count, 33) << type << key;
      const bool mixtral = model.family == Family::kMixtral;
      EXPECT_EQ(model.source.find("num_local_experts") != nullptr, mixtral);
      EXPECT_EQ(model.source.find("num_experts") != nullptr, !mixtral);
    }
    EXPECT_EQ(
        fault(fmt::format(R"({{"model_type":"{}","num_experts":33,"num_local_experts":34}})", type))
            .message.substr(0, 11),
        "contradicts");
  }
}

struct ExpertFault {
  const char *type, *keys, *path;
};
class WrongExperts : public testing::TestWithParam<ExpertFault> {};

TEST_P(WrongExperts, is_refused_by_its_key) {
  const auto& [type, keys, path] = GetParam();
  EXPECT_EQ(fault(fmt::format(R"({{"model_type":"{}",{}}})", type, keys)).path, path) << keys;
}

INSTANTIATE_TEST_SUITE_P(
    ExpertsParse, WrongExperts,
    testing::Values(
        ExpertFault{"mixtral", R"("num_experts_per_tok":9)", "model.num_experts_per_tok"},
        ExpertFault{"mixtral", R"("num_local_experts":1)", "model.num_experts_per_tok"},
        ExpertFault{"glm4_moe", R"("head_dim":128,"n_group":3)", "model.n_group"},
        ExpertFault{"glm4_moe", R"("head_dim":128,"n_group":2,"topk_group":3)", "model.topk_group"},
        ExpertFault{"glm4_moe", R"("head_dim":128,"n_group":32)", "model.topk_group"},
        ExpertFault{"glm4_moe", R"("head_dim":128,"routed_scaling_factor":0)",
                    "model.routed_scaling_factor"},
        ExpertFault{"glm4_moe", R"("head_dim":128,"partial_rotary_factor":1.5)",
                    "model.partial_rotary_factor"},
        ExpertFault{"glm4_moe", R"("head_dim":22,"partial_rotary_factor":0.5)",
                    "model.partial_rotary_factor"},
        ExpertFault{"deepseek_v3", R"("n_group":7)", "model.n_group"},
        ExpertFault{"deepseek_v3", R"("topk_group":9)", "model.topk_group"},
        ExpertFault{"deepseek_v3", R"("n_group":64,"topk_group":1)", "model.topk_group"},
        ExpertFault{"deepseek_v3", R"("num_local_experts":12)", "model.n_group"},
        ExpertFault{"deepseek_v3", R"("scoring_func":"softmax")", "model.scoring_func"},
        ExpertFault{"deepseek_v3", R"("topk_method":"greedy")", "model.topk_method"},
        ExpertFault{"deepseek_v3", R"("moe_layer_freq":2)", "model.moe_layer_freq"},
        ExpertFault{"deepseek_v3", R"("use_qk_norm":true)", "model.use_qk_norm"},
        ExpertFault{"qwen3_moe", R"("num_experts_per_tok":33)", "model.num_experts_per_tok"},
        ExpertFault{"qwen3_moe", R"("num_experts_per_tok":0)", "model.num_experts_per_tok"},
        ExpertFault{"qwen3_moe", R"("num_experts":1025)", "model.num_experts"},
        ExpertFault{"olmoe", R"("num_experts":0,"num_experts_per_tok":1)", "model.num_experts"},
        ExpertFault{"olmoe", R"("num_experts":1024,"num_hidden_layers":65)", "model.num_experts"},
        ExpertFault{"olmoe", R"("intermediate_size":1048577)", "model.intermediate_size"},
        ExpertFault{"qwen3_moe", R"("moe_intermediate_size":0)", "model.moe_intermediate_size"},
        ExpertFault{"qwen3_moe", R"("decoder_sparse_step":0)", "model.decoder_sparse_step"},
        ExpertFault{"qwen3_moe", R"("mlp_only_layers":1)", "model.mlp_only_layers"},
        ExpertFault{"qwen3_moe", R"("mlp_only_layers":[-1])", "model.mlp_only_layers"},
        ExpertFault{"qwen3_moe", R"("mlp_only_layers":["0"])", "model.mlp_only_layers"},
        ExpertFault{"qwen3_moe", R"("norm_topk_prob":1)", "model.norm_topk_prob"},
        ExpertFault{"qwen3_moe", R"("layer_types":[])", "model.layer_types"},
        ExpertFault{"qwen3_moe", R"("shared_expert_intermediate_size":8)",
                    "model.shared_expert_intermediate_size"},
        ExpertFault{"qwen2_moe", R"("shared_expert_intermediate_size":0)",
                    "model.shared_expert_intermediate_size"},
        ExpertFault{"qwen2_moe", R"("use_sliding_window":true,"sliding_window":-1)",
                    "model.sliding_window"},
        ExpertFault{"mixtral", R"("norm_topk_prob":false)", "model.norm_topk_prob"},
        ExpertFault{"mixtral", R"("moe_intermediate_size":8)", "model.moe_intermediate_size"},
        ExpertFault{"mixtral", R"("router_jitter_noise":0.1)", "model.router_jitter_noise"},
        ExpertFault{"mixtral", R"("router_aux_loss_coef":-1)", "model.router_aux_loss_coef"},
        ExpertFault{"mixtral", R"("output_router_logits":"yes")", "model.output_router_logits"},
        ExpertFault{"olmoe", R"("clip_qkv":8)", "model.clip_qkv"},
        ExpertFault{"gpt_oss", R"("swiglu_limit":0)", "model.swiglu_limit"},
        ExpertFault{"gpt_oss", R"("swiglu_alpha":"x")", "model.swiglu_alpha"},
        ExpertFault{"gpt_oss", R"("num_local_experts":3)", "model.num_experts_per_tok"},
        ExpertFault{"gpt_oss", R"("moe_intermediate_size":8)", "model.moe_intermediate_size"},
        ExpertFault{"gpt_oss", R"("norm_topk_prob":true)", "model.norm_topk_prob"},
        ExpertFault{"gpt_oss", R"("sliding_window":null)", "model.sliding_window"},
        ExpertFault{"gpt_oss", R"("hidden_act":"gelu")", "model.hidden_act"},
        ExpertFault{"gpt_oss", R"("quantization_config":{"quant_method":"mxfp4"})",
                    "model.quantization_config"},
        ExpertFault{"llama", R"("num_experts":8)", "model.num_experts"}));

TEST(ExpertsParse, gpt_oss_has_biases_clamped_units_and_sinks) {
  const ModelConfig model = legal(R"({"model_type":"gpt_oss","num_hidden_layers":3})");
  for (std::int64_t i = 0; i < 3; ++i) {
    const LayerConfig& layer = model.layer(i);
    EXPECT_TRUE(layer.attention.sinks && layer.attention.qkv_bias && layer.attention.out_bias);
    EXPECT_EQ(layer.attention.window, i % 2 == 0 ? 128 : 0);
    EXPECT_TRUE(layer.experts->biased && layer.experts->normalized);
    EXPECT_EQ(layer.experts->swiglu_limit, 7);
    EXPECT_EQ(layer.experts->ffn, 2880);
    EXPECT_EQ(layer.mlp.ffn, 0);
  }
  const RopeConfig& rope = *model.layer(0).attention.rope;
  EXPECT_EQ(rope.kind, RopeKind::kYarn);
  EXPECT_FALSE(rope.truncate);
  EXPECT_EQ(rope.theta, 150000);
  EXPECT_EQ(legal(R"({"model_type":"gpt_oss","rope_theta":7e3})").layer(0).attention.rope->kind,
            RopeKind::kYarn);
  EXPECT_FALSE(legal(R"({"model_type":"olmoe"})").layer(0).experts->biased);
}

TEST(ExpertsParse, published_gpt_oss_is_refused_with_the_way_to_other_weights) {
  const Problem problem =
      fault(R"({"model_type":"gpt_oss","quantization_config":{"quant_method":"mxfp4"}})");
  EXPECT_NE(problem.legal.find("Mxfp4Config(dequantize=True)"), std::string::npos);
  EXPECT_TRUE(legal(R"({"model_type":"gpt_oss","quantization_config":null})").has_experts());
}

TEST(ExpertsParse, more_experts_chosen_than_there_are_is_told_with_both_numbers) {
  const Problem problem = fault(R"({"model_type":"mixtral","num_experts_per_tok":9})");
  EXPECT_EQ(problem.message, "chooses 9 of 8 experts");
  EXPECT_EQ(problem.legal, "up to num_local_experts = 8");
  EXPECT_EQ(problem.nearest, "8");
}

TEST(ExpertsParse, another_number_or_place_of_experts_is_another_shape) {
  const auto with = [](const char* keys) {
    return legal(fmt::format(R"({{"model_type":"qwen2_moe","num_hidden_layers":4{}}})", keys));
  };
  const ModelConfig model = with("");
  EXPECT_EQ(shape_difference(model, with(R"(,"router_aux_loss_coef":3)"), "a"), "");
  for (const char* key : {"num_experts", "moe_intermediate_size", "decoder_sparse_step",
                          "shared_expert_intermediate_size"}) {
    const std::string other = fmt::format(R"(,"{}":7)", key);
    EXPECT_TRUE(
        shape_difference(model, with(other.c_str()), "a").starts_with(std::string("model.") + key))
        << key;
  }
  EXPECT_EQ(shape_difference(model, with(R"(,"mlp_only_layers":[1])"), "a"),
            "model.mlp_only_layers: [] in a, [1] in the config");
  EXPECT_EQ(shape_difference(model, with(R"(,"qkv_bias":false)"), "a"),
            "model.qkv_bias: true in a, false in the config");
}

}  // namespace
}  // namespace trireme
