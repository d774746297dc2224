#include "config/latent_parse.h"

#include <gtest/gtest.h>

#include <cmath>

#include "config/model_parse.h"
#include "read_keys.h"

namespace trireme {
namespace {

std::string with(std::string_view keys) {
  return fmt::format(R"({{"model_type":"deepseek_v3"{}{}}})", keys.empty() ? "" : ",", keys);
}

TEST(LatentParse, heads_are_as_attention_computes_them) {
  const AttentionConfig keys_wider = legal(with(R"("v_head_dim":128)")).layer(0).attention;
  EXPECT_EQ(keys_wider.head_dim, 192);
  EXPECT_EQ(keys_wider.kv_heads, keys_wider.heads);
  EXPECT_EQ(keys_wider.rotated_dims(), 64);
  EXPECT_EQ(keys_wider.out_size(), 128 * 128);
  EXPECT_EQ(keys_wider.qk_norm, QkNorm::kNone);
  EXPECT_EQ(legal(with(R"("v_head_dim":256)")).layer(0).attention.head_dim, 256);
  EXPECT_FALSE(legal(R"({"model_type":"glm4_moe","head_dim":128})").layer(0).attention.latent);
}

TEST(LatentParse, queries_have_no_latent_where_its_rank_is_null) {
  EXPECT_EQ(legal(with("")).layer(0).attention.latent->q_rank, 1536);
  const ModelConfig without = legal(with(R"("q_lora_rank":null)"));
  EXPECT_EQ(without.layer(0).attention.latent->q_rank, 0);
  const Json exported = hf_config_json(without, DType::kBF16);
  ASSERT_NE(exported.find("q_lora_rank"), nullptr);  // absent it would be 1536
  EXPECT_TRUE(exported.find("q_lora_rank")->is_null());
}

TEST(LatentParse, its_norms_have_an_eps_of_their_own) {
  const LayerConfig layer = legal(with(R"("rms_norm_eps":1e-3)")).layer(0);
  EXPECT_EQ(layer.norm.eps, 1e-3);
  EXPECT_EQ(layer.attention.latent->norm_eps, 1e-6);
}

TEST(LatentParse, yarn_scales_scores_by_mscale_all_dim) {
  const auto scale = [](std::string_view rope) {
    const std::string keys = fmt::format(R"("rope_scaling":{})", rope);
    return legal(with(keys)).layer(0).attention.score_scale * std::sqrt(192.0);
  };
  EXPECT_DOUBLE_EQ(scale("null"), 1);
  EXPECT_DOUBLE_EQ(scale(R"({"type":"yarn","factor":40,"mscale":1.0})"), 1);
  EXPECT_DOUBLE_EQ(scale(R"({"type":"yarn","factor":0.5,"mscale_all_dim":1.0})"), 1);
  const double m = 0.1 * 0.7 * std::log(40.0) + 1;
  EXPECT_DOUBLE_EQ(scale(R"({"type":"yarn","factor":40,"mscale_all_dim":0.7})"), m * m);
  EXPECT_DOUBLE_EQ(scale(R"({"type":"linear","factor":40})"), 1);
  EXPECT_EQ(
      fault(with(R"("rope_scaling":{"type":"linear","factor":40,"mscale_all_dim":0.7})")).path,
      "model.rope_scaling.mscale_all_dim");
}

TEST(LatentParse, the_sizes_of_heads_that_transformers_saves_follow_from_others) {
  const ModelConfig model = legal(with(R"("head_dim":64,"qk_head_dim":192)"));
  EXPECT_EQ(model, legal(with("")));
  const Json keys = model_keys_json(model);
  EXPECT_EQ(*keys.find("head_dim"), Json(64));
  EXPECT_EQ(*keys.find("qk_head_dim"), Json(192));
  const Problem problem = fault(with(R"("head_dim":128)"));
  EXPECT_EQ(problem.path, "model.head_dim");
  EXPECT_EQ(problem.nearest, "64");
  EXPECT_EQ(problem.legal, "qk_rope_head_dim = 64, or leave it out");
  EXPECT_EQ(fault(with(R"("qk_head_dim":128)")).path, "model.qk_head_dim");
}

TEST(LatentParse, each_head_has_keys_and_values_of_its_own) {
  EXPECT_EQ(legal(with(R"("num_attention_heads":4,"num_key_value_heads":null)"))
                .layer(0)
                .attention.kv_heads,
            4);
  for (const char* keys :
       {R"("num_attention_heads":4)", R"("num_attention_heads":4,"num_key_value_heads":2)",
        R"("num_key_value_heads":1)"}) {
    EXPECT_EQ(fault(with(keys)).path, "model.num_key_value_heads") << keys;
  }
  EXPECT_EQ(fault(with(R"("num_attention_heads":4)")).nearest, "4");
}

struct LatentFault {
  const char *keys, *path;
};
class WrongLatents : public testing::TestWithParam<LatentFault> {};

TEST_P(WrongLatents, are_refused_by_their_key) {
  const auto& [keys, path] = GetParam();
  EXPECT_EQ(fault(with(keys)).path, path) << keys;
}

INSTANTIATE_TEST_SUITE_P(
    LatentParse, WrongLatents,
    testing::Values(LatentFault{R"("q_lora_rank":0)", "model.q_lora_rank"},
                    LatentFault{R"("q_lora_rank":-1)", "model.q_lora_rank"},
                    LatentFault{R"("q_lora_rank":1.5)", "model.q_lora_rank"},
                    LatentFault{R"("q_lora_rank":9223372036854775807)", "model.q_lora_rank"},
                    LatentFault{R"("kv_lora_rank":0)", "model.kv_lora_rank"},
                    LatentFault{R"("kv_lora_rank":"512")", "model.kv_lora_rank"},
                    LatentFault{R"("qk_nope_head_dim":0)", "model.qk_nope_head_dim"},
                    LatentFault{R"("qk_nope_head_dim":127)", "model.qk_nope_head_dim"},
                    LatentFault{R"("qk_nope_head_dim":1e9)", "model.qk_nope_head_dim"},
                    LatentFault{R"("qk_rope_head_dim":0)", "model.qk_rope_head_dim"},
                    LatentFault{R"("qk_rope_head_dim":1)", "model.qk_rope_head_dim"},
                    LatentFault{R"("qk_rope_head_dim":63)", "model.qk_rope_head_dim"},
                    LatentFault{R"("v_head_dim":0)", "model.v_head_dim"},
                    LatentFault{R"("v_head_dim":127)", "model.v_head_dim"},
                    LatentFault{R"("v_head_dim":8193)", "model.v_head_dim"},
                    LatentFault{R"("head_dim":-64)", "model.head_dim"},
                    LatentFault{R"("rope_interleave":1)", "model.rope_interleave"},
                    LatentFault{R"("partial_rotary_factor":0.5)", "model.partial_rotary_factor"},
                    LatentFault{R"("quantization_config":{"quant_method":"fp8"})",
                                "model.quantization_config"},
                    LatentFault{R"("sliding_window":64)", "model.sliding_window"}));

TEST(LatentParse, quantized_weights_are_refused_with_what_is_read) {
  const Problem problem = fault(with(R"("quantization_config":{"quant_method":"fp8"})"));
  EXPECT_EQ(problem.message, "not in this version");
  EXPECT_EQ(problem.legal, "null, beside weights in fp32 or bf16");
}

TEST(LatentParse, other_ranks_and_dims_are_another_shape) {
  const ModelConfig model = legal(with(""));
  EXPECT_EQ(shape_difference(model, legal(with(R"("rope_interleave":false)")), "a"), "");
  for (const char* key : {"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
                          "v_head_dim", "n_routed_experts", "first_k_dense_replace"}) {
    const ModelConfig other = legal(with(fmt::format(R"("{}":32)", key)));
    EXPECT_TRUE(shape_difference(model, other, "a").starts_with(std::string("model.") + key))
        << key << shape_difference(model, other, "a");
  }
  EXPECT_EQ(shape_difference(model, legal(with(R"("q_lora_rank":null)")), "a"),
            "model.q_lora_rank: 1536 in a, null in the config");
}

}  // namespace
}  // namespace trireme
