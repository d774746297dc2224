#include "config/model_parse.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "config/model_keys.h"
#include "read_keys.h"
#include "support.h"

namespace trireme {
namespace {

/// A small llama with more keys.
std::string llama(std::string_view more) {
  return R"({"model_type":"llama","hidden_size":64,"num_attention_heads":4,"num_hidden_layers":2,)"
         R"("intermediate_size":128,"vocab_size":257)" +
         std::string(more.empty() ? "" : ",") + std::string(more) + "}";
}

// Made by tests/golden/config/make_models.py: configs as transformers reads them.
void expect_rope(const Json& ours, const Json& wanted, const std::string& of) {
  for (const auto& [name, value] : wanted.as_object()) {
    ASSERT_NE(ours.find(name), nullptr) << of << name;
    const bool same = value.is_number() ? ours.find(name)->as_double() == value.as_double()
                                        : *ours.find(name) == value;
    EXPECT_TRUE(same) << of << name;
  }
}

/// `ffn`: of the layers without experts.
void expect_experts(const ModelConfig& model, const Json& wanted, std::int64_t ffn,
                    const std::string& of) {
  const auto integer = [&](const char* key) { return wanted.find(key)->as_integer(); };
  ExpertsConfig experts{.count = integer("count"), .chosen = integer("chosen")};
  experts.ffn = integer("ffn");
  experts.normalized = wanted.find("normalized")->as_bool();
  experts.shared_gate = model.family == Family::kQwen2Moe;
  if (wanted.find("groups") != nullptr) {
    experts.sigmoid = experts.has_bias = true;
    experts.groups = integer("groups");
    experts.groups_chosen = integer("groups_chosen");
    experts.scale = wanted.find("scale")->as_double();
  }
  if (const Json* alpha = wanted.find("swiglu_alpha")) {
    experts.biased = true;
    experts.swiglu_alpha = alpha->as_double();
    experts.swiglu_limit = wanted.find("swiglu_limit")->as_double();
  }
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const LayerConfig& layer = model.layers[i];
    const bool has = wanted.find("layers")->as_array().at(i).as_integer() == 1;
    EXPECT_EQ(layer.experts, has ? std::optional(experts) : std::nullopt) << of << i;
    EXPECT_EQ(layer.mlp.ffn, has ? integer("shared") : ffn) << of << i;
  }
  const Json* coefficient = wanted.find("aux_coefficient");
  EXPECT_EQ(model.aux_coefficient, coefficient == nullptr ? 1e-4 : coefficient->as_double()) << of;
  const Json* aux_loss = wanted.find("aux_loss");
  EXPECT_EQ(model.aux_loss, aux_loss != nullptr && aux_loss->as_bool()) << of;
}

void expect_latent(const std::optional<LatentConfig>& ours, const Json* wanted,
                   const std::string& of) {
  ASSERT_EQ(ours.has_value(), wanted != nullptr) << of;
  if (wanted == nullptr) return;
  const auto integer = [&](const char* key) { return wanted->find(key)->as_integer(); };
  LatentConfig latent{.q_rank = integer("q_rank"), .kv_rank = integer("kv_rank")};
  latent.nope_dim = integer("nope_dim");
  latent.rope_dim = integer("rope_dim");
  latent.value_dim = integer("value_dim");
  latent.interleaved = wanted->find("interleaved")->as_bool();
  EXPECT_EQ(*ours, latent) << of;  // the eps of its norms too, whatever rms_norm_eps says
}

TEST(ModelParse, reads_what_transformers_reads) {
  const Json golden = parse_json(
      read_file(std::filesystem::path(TRIREME_GOLDEN) / "config/models.json"), "models.json");
  ASSERT_GE(golden.as_array().size(), 20U);
  for (const Json& item : golden.as_array()) {
    const Json& keys = *item.find("keys");
    const Read result = read(keys);
    ASSERT_TRUE(result.problems.empty()) << keys.dump() << format_problems(result.problems);
    const ModelConfig& m = result.model;
    const LayerConfig& layer = m.layers.back();
    const Json& wanted = *item.find("model");
    const auto integer = [&](const char* key) { return wanted.find(key)->as_integer(); };
    EXPECT_EQ(m.layer_count(), integer("layers")) << keys.dump();
    EXPECT_EQ(m.hidden, integer("hidden")) << keys.dump();
    if (const Json* experts = wanted.find("experts")) {
      expect_experts(m, *experts, integer("ffn"), keys.dump());
    } else {
      EXPECT_EQ(layer.mlp.ffn, integer("ffn")) << keys.dump();
    }
    EXPECT_EQ(layer.attention.heads, integer("heads")) << keys.dump();
    EXPECT_EQ(layer.attention.kv_heads, integer("kv_heads")) << keys.dump();
    EXPECT_EQ(layer.attention.head_dim, integer("head_dim")) << keys.dump();
    EXPECT_EQ(m.vocab_size, integer("vocab_size")) << keys.dump();
    EXPECT_EQ(m.max_positions, integer("max_positions")) << keys.dump();
    EXPECT_EQ(m.norm.eps, wanted.find("norm_eps")->as_double()) << keys.dump();
    EXPECT_EQ(m.init_std, wanted.find("init_std")->as_double()) << keys.dump();
    EXPECT_EQ(m.tied_embeddings, wanted.find("tied_embeddings")->as_bool()) << keys.dump();
    EXPECT_EQ(layer.attention.qkv_bias, wanted.find("qkv_bias")->as_bool()) << keys.dump();
    EXPECT_EQ(layer.attention.out_bias, wanted.find("attention_out_bias")->as_bool())
        << keys.dump();
    EXPECT_EQ(layer.mlp.bias, wanted.find("mlp_bias")->as_bool()) << keys.dump();
    EXPECT_EQ(m.bos_token, integer("bos_token")) << keys.dump();
    EXPECT_EQ(m.end_token, integer("end_token")) << keys.dump();
    const Json* window = wanted.find("sliding_window");
    if (wanted.find("windows") == nullptr) {
      EXPECT_EQ(layer.attention.window, window == nullptr ? 0 : window->as_integer())
          << keys.dump();
    } else {
      for (std::size_t i = 0; i < m.layers.size(); ++i) {
        const AttentionConfig& attention = m.layers[i].attention;
        EXPECT_EQ(attention.window, wanted.find("windows")->as_array().at(i).as_integer())
            << keys.dump() << i;
        const Json* rotates = wanted.find("rotates");
        EXPECT_EQ(attention.rope.has_value(),
                  rotates == nullptr || rotates->as_array().at(i).as_integer() == 1)
            << keys.dump() << i;
      }
    }
    expect_latent(layer.attention.latent, wanted.find("latent"), keys.dump());
    if (const Json* scale = wanted.find("score_scale")) {
      EXPECT_DOUBLE_EQ(layer.attention.score_scale, scale->as_double()) << keys.dump();
    }
    const Json ours = model_keys_json(m);
    if (const Json* rope = wanted.find("rope")) {
      EXPECT_EQ(m.layer(0).attention.rope->theta, rope->find("rope_theta")->as_double())
          << keys.dump();
      expect_rope(*ours.find("rope_parameters"), *rope, keys.dump());
    }
    if (const Json* ropes = wanted.find("ropes")) {
      for (const auto& [type, rope] : ropes->as_object())
        expect_rope(*ours.find("rope_parameters")->find(type), rope, keys.dump() + type);
    }
  }
}

TEST(ModelParse, what_a_family_always_has) {
  const ModelConfig olmo2 = legal(R"({"model_type":"olmo2"})");
  EXPECT_EQ(olmo2.layer(0).norm_place, NormPlace::kAfter);
  EXPECT_EQ(olmo2.layer(0).attention.qk_norm, QkNorm::kProjection);
  const ModelConfig gemma3 = legal(R"({"model_type":"gemma3_text","hidden_size":64})");
  EXPECT_EQ(gemma3.layer(0).norm_place, NormPlace::kBoth);
  EXPECT_EQ(gemma3.layer(0).attention.qk_norm, QkNorm::kHeads);
  EXPECT_EQ(gemma3.layer(0).mlp.activation, Activation::kGeGlu);
  EXPECT_EQ(gemma3.norm.weight_offset, 1);
  EXPECT_EQ(gemma3.embedding_scale, 8);
  const ModelConfig gpt2 = legal(R"({"model_type":"gpt2"})");
  EXPECT_EQ(gpt2.layer(0).norm.kind, NormKind::kLayer);
  EXPECT_EQ(gpt2.layer(0).mlp.activation, Activation::kGeluTanh);
  EXPECT_TRUE(gpt2.learned_positions && !gpt2.layer(0).attention.rope);
  EXPECT_TRUE(gpt2.weights_in_out());
  const ModelConfig qwen3 = legal(R"({"model_type":"qwen3"})");
  EXPECT_EQ(qwen3.layer(0).attention.qk_norm, QkNorm::kHeads);
  EXPECT_EQ(qwen3.layer(0).norm.kind, NormKind::kRms);
  EXPECT_EQ(legal(llama("")).layer(0).attention.qk_norm, QkNorm::kNone);
}

TEST(ModelParse, layers_with_and_without_a_window_have_a_rotary_embedding_each) {
  const auto with = [](const std::string& family, const std::string& keys) {
    return fmt::format(R"({{"model_type":"{}","num_hidden_layers":2,{}}})", family, keys);
  };
  const std::string types = R"("layer_types":["sliding_attention","full_attention"])";
  const ModelConfig gemma = legal(with("gemma3_text", types));
  EXPECT_EQ(gemma.layer(0).attention.rope->theta, 1e4);
  EXPECT_EQ(gemma.layer(1).attention.rope->theta, 1e6);
  // As transformers: an OLMo's base is that of layers that see all.
  const ModelConfig olmo = legal(with("olmo3", types + R"(,"rope_theta":7)"));
  EXPECT_EQ(olmo.layer(0).attention.rope->theta, 5e5);
  EXPECT_EQ(olmo.layer(1).attention.rope->theta, 7);
  for (const char* keys :
       {R"("rope_parameters":{"rope_type":"default","rope_theta":7})",
        R"("rope_parameters":{"full_attention":3})", R"("rope_parameters":{"other":{}})"}) {
    EXPECT_EQ(fault(with("gemma3_text", keys)).path, "model.rope_parameters") << keys;
  }
  EXPECT_EQ(
      fault(
          with(
              "gemma3_text",
              R"("rope_local_base_freq":7,"rope_parameters":{"sliding_attention":{"rope_theta":8}})"))
          .path,
      "model.rope_local_base_freq");
  EXPECT_EQ(fault(with("gemma3_text",
                       R"("rope_parameters":{"full_attention":{"rope_type":"yarn","factr":2}})"))
                .path,
            "model.rope_parameters.full_attention.factr");
  EXPECT_EQ(fault(with("olmo3", R"("rope_local_base_freq":7)")).path, "model.rope_local_base_freq");
  EXPECT_EQ(fault(with("olmo3", R"("sliding_window":null)")).path, "model.sliding_window");
  EXPECT_EQ(legal(with("gemma3_text", R"("sliding_window":null,"sliding_window_pattern":1)"))
                .layer(0)
                .attention.window,
            0);
  EXPECT_EQ(fault(with("gemma3_text", R"("query_pre_attn_scalar":0)")).path,
            "model.query_pre_attn_scalar");
  EXPECT_EQ(fault(with("gemma3_text", R"("use_bidirectional_attention":true)")).path,
            "model.use_bidirectional_attention");
  EXPECT_EQ(fault(with("gemma3_text", R"("final_logit_softcapping":30)")).path,
            "model.final_logit_softcapping");
  EXPECT_EQ(fault(with("gemma3_text", R"("hidden_activation":"silu")")).path,
            "model.hidden_activation");
}

TEST(ModelParse, a_mistral_has_no_biases_and_a_window_that_null_takes_away) {
  const std::string sizes = R"("model_type":"mistral","hidden_size":64,"num_attention_heads":4,)"
                            R"("num_key_value_heads":2,"num_hidden_layers":2)";
  const auto with = [&](std::string_view more) { return fmt::format("{{{}{}}}", sizes, more); };
  const ModelConfig model = legal(with(R"(,"sliding_window":null)"));
  EXPECT_EQ(model.family, Family::kMistral);
  const AttentionConfig& attention = model.layer(0).attention;
  EXPECT_FALSE(attention.qkv_bias || attention.out_bias);
  EXPECT_EQ(attention.qk_norm, QkNorm::kNone);
  EXPECT_FALSE(model.layer(0).mlp.bias);
  EXPECT_EQ(attention.window, 0);
  EXPECT_EQ(legal(with("")).layer(0).attention.window, 4096);
  EXPECT_EQ(legal(with(R"(,"sliding_window":17)")).layer(0).attention.window, 17);
  for (const char* value : {"0", "-1", "1.5", R"("4096")", "true"}) {
    EXPECT_EQ(fault(with(fmt::format(R"(,"sliding_window":{})", value))).path,
              "model.sliding_window")
        << value;
  }
  EXPECT_EQ(fault(with(R"(,"attention_bias":true)")).path, "model.attention_bias");
  const Json exported = hf_config_json(model, DType::kBF16);
  EXPECT_EQ(exported.find("architectures")->dump(), R"(["MistralForCausalLM"])");
  ASSERT_NE(exported.find("sliding_window"), nullptr);  // absent it would be 4096
  EXPECT_TRUE(exported.find("sliding_window")->is_null());
}

TEST(ModelParse, gpt2_takes_family_names_and_aliases) {
  const ModelConfig a = legal(
      R"({"model_type":"gpt2","n_embd":48,"n_layer":3,"n_head":2,"n_positions":77,"n_inner":96})");
  const ModelConfig b =
      legal(R"({"model_type":"gpt2","hidden_size":48,"num_hidden_layers":3,"num_attention_heads":2,
                                  "max_position_embeddings":77,"intermediate_size":96})");
  EXPECT_EQ(a, b);
  EXPECT_EQ(a.layer(0).mlp.ffn, 96);
  EXPECT_EQ(legal(R"({"model_type":"gpt2","n_embd":48,"n_head":2,"hidden_size":48,"n_inner":null})")
                .layer(0)
                .mlp.ffn,
            192);
  EXPECT_EQ(fault(R"({"model_type":"gpt2","n_embd":48,"n_head":2,"hidden_size":64})").path,
            "model.hidden_size");
}

TEST(ModelParse, a_model_of_another_kind_is_refused_by_name) {
  EXPECT_TRUE(fault(R"({"model_type":"bert"})").message.starts_with("is no model_type"));
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    const Problem problem = fault(llama(fmt::format(R"("{}":50.0)", key)));
    EXPECT_EQ(problem.path, std::string("model.") + key);
    EXPECT_EQ(problem.message, "not in this version");
    legal(llama(fmt::format(R"("{}":null)", key)));
  }
  for (const char* type : {"glm4", "phi3", "gemma2"}) {
    const Problem problem = fault(fmt::format(R"({{"model_type":"{}"}})", type));
    EXPECT_EQ(problem.path, "model.model_type");
    EXPECT_EQ(problem.message, "not in this version");
  }
  EXPECT_EQ(fault("{}").path, "model.model_type");
  EXPECT_EQ(fault(R"({"model_type":3})").path, "model.model_type");
}

TEST(ModelParse, rope_is_read_in_both_spellings) {
  const ModelConfig now =
      legal(llama(R"("rope_parameters":{"rope_type":"default","rope_theta":500000.0})"));
  const ModelConfig then = legal(llama(R"("rope_theta":500000.0,"rope_scaling":null)"));
  EXPECT_EQ(*now.layer(0).attention.rope, *then.layer(0).attention.rope);
  EXPECT_EQ(now.layer(0).attention.rope->theta, 500000.0);
  // An exporter that left null behind.
  EXPECT_EQ(legal(llama(R"("rope_theta":null,"rope_parameters":{"rope_theta":5e5})"))
                .layer(0)
                .attention.rope->theta,
            5e5);
  const ModelConfig both =
      legal(llama(R"("rope_theta":5e5,"rope_scaling":{"type":"linear","factor":2},
                                          "rope_parameters":{"rope_type":"linear","factor":2.0,"rope_theta":5e5})"));
  EXPECT_EQ(both.layer(0).attention.rope->kind, RopeKind::kLinear);
  EXPECT_EQ(both.layer(0).attention.rope->factor, 2);
}

TEST(ModelParse, contradicting_spellings_of_rope_are_refused) {
  EXPECT_EQ(fault(llama(R"("rope_theta":1e4,"rope_parameters":{"rope_theta":5e5})")).path,
            "model.rope_theta");
  EXPECT_EQ(fault(llama(R"("rope_scaling":{"type":"linear","factor":2},
                           "rope_parameters":{"rope_type":"linear","factor":3})"))
                .path,
            "model.rope_scaling");
  EXPECT_EQ(fault(llama(R"("rope_scaling":{"type":"linear","rope_type":"yarn","factor":2})")).path,
            "model.rope_scaling.type");
}

TEST(ModelParse, rope_of_a_kind_we_lack_or_with_missing_numbers_is_refused) {
  EXPECT_EQ(fault(llama(R"("rope_scaling":{"type":"dynamic","factor":2})")).message,
            "not in this version");
  EXPECT_EQ(fault(llama(R"("rope_scaling":{"rope_type":"linear"})")).path,
            "model.rope_scaling.factor");
  EXPECT_EQ(
      fault(
          llama(
              R"("rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":4})"))
          .path,
      "model.rope_scaling.high_freq_factor");
  EXPECT_EQ(fault(llama(R"("rope_parameters":{"full_attention":{"rope_theta":1e4}})")).message,
            "not in this version");
  EXPECT_EQ(fault(llama(R"("rope_parameters":{"partial_rotary_factor":0.5})")).path,
            "model.rope_parameters.partial_rotary_factor");
  EXPECT_EQ(fault(llama(R"("rope_scaling":{"rope_type":"linear","facter":2,"factor":2})")).nearest,
            "factor");
  EXPECT_EQ(fault(llama(R"("rope_theta":0)")).path, "model.rope_theta");
  EXPECT_EQ(fault(llama(R"("rope_scaling":"linear")")).path, "model.rope_scaling");
}

TEST(ModelParse, a_ministral_has_windows_by_layer_or_queries_that_grow) {
  const ModelConfig all = legal(R"({"model_type":"ministral","num_hidden_layers":2})");
  EXPECT_EQ(all.layer(1).attention.window, 4096);
  const ModelConfig some =
      legal(R"({"model_type":"ministral","num_hidden_layers":2,"sliding_window":7,)"
            R"("layer_types":["full_attention","sliding_attention"]})");
  EXPECT_EQ(some.layer(0).attention.window, 0);
  EXPECT_EQ(some.layer(1).attention.window, 7);
  EXPECT_EQ(fault(R"({"model_type":"ministral","num_hidden_layers":1,"sliding_window":null,)"
                  R"("layer_types":["sliding_attention"]})")
                .path,
            "model.layer_types");

  const ModelConfig three = legal(R"({"model_type":"ministral3"})");
  EXPECT_EQ(three.layer(0).attention.rope->query_beta, 0.1);
  EXPECT_EQ(three.layer(0).attention.rope->kind, RopeKind::kYarn);
  EXPECT_EQ(three.layer(0).attention.window, 0);
  const std::string rope =
      R"("rope_parameters":{"rope_type":"yarn","factor":2,"original_max_position_embeddings":8,)"
      R"("llama_4_scaling_beta":0.25}})";
  EXPECT_EQ(legal(R"({"model_type":"ministral3",)" + rope).layer(0).attention.rope->query_beta,
            0.25);
  EXPECT_EQ(fault(R"({"model_type":"mistral","sliding_window":null,)" + rope).path,
            "model.rope_parameters.llama_4_scaling_beta");
}

TEST(ModelParse, a_smollm3_has_layers_without_rope_that_its_keys_name) {
  const auto with = [](const std::string& keys) {
    return R"({"model_type":"smollm3","num_hidden_layers":4,)" + keys + "}";
  };
  const auto rotates = [&](const std::string& keys) {
    std::string text;
    for (const LayerConfig& layer : legal(with(keys)).layers)
      text += layer.attention.rope ? '1' : '0';
    return text;
  };
  EXPECT_EQ(rotates(R"("hidden_size":64)"), "1110");
  EXPECT_EQ(rotates(R"("no_rope_layer_interval":2)"), "1010");
  EXPECT_EQ(rotates(R"("no_rope_layers":[0,0,1,1,1],"no_rope_layer_interval":2)"), "0011");
  EXPECT_EQ(rotates(R"("no_rope_layers":[true,false,true,true])"), "1011");
  for (const char* keys : {R"("no_rope_layers":[1,0,1])", R"("no_rope_layers":[1,0,1,2])",
                           R"("no_rope_layers":"1110")"}) {
    EXPECT_EQ(fault(with(keys)).path, "model.no_rope_layers") << keys;
  }
  EXPECT_EQ(fault(with(R"("no_rope_layer_interval":0)")).path, "model.no_rope_layer_interval");
  EXPECT_EQ(legal(with(R"("use_sliding_window":true)")).layer(3).attention.window, 0)
      << "a window without a size";
  EXPECT_EQ(
      legal(
          with(R"("use_sliding_window":true,"sliding_window":7,"layer_types":["sliding_attention",)"
               R"("full_attention","full_attention","full_attention"])"))
          .layer(0)
          .attention.window,
      7);
}

TEST(ModelParse, a_qwen_has_windows_in_the_layers_that_its_keys_name) {
  const auto windows = [](const std::string& keys) {
    const ModelConfig model = legal(R"({"model_type":"qwen2","num_hidden_layers":4,)" + keys + "}");
    std::vector<std::int64_t> of_layers;
    for (const LayerConfig& layer : model.layers) of_layers.push_back(layer.attention.window);
    return of_layers;
  };
  using Windows = std::vector<std::int64_t>;
  EXPECT_EQ(windows(R"("use_sliding_window":true,"max_window_layers":2)"),
            (Windows{0, 0, 4096, 4096}));
  EXPECT_EQ(windows(R"("use_sliding_window":true,"sliding_window":9,"max_window_layers":3)"),
            (Windows{0, 0, 0, 9}));
  EXPECT_EQ(windows(R"("use_sliding_window":true,"max_window_layers":28)"), (Windows{0, 0, 0, 0}));
  EXPECT_EQ(windows(R"("use_sliding_window":false,"max_window_layers":0)"), (Windows{0, 0, 0, 0}));
  const std::string types =
      R"("layer_types":["sliding_attention","full_attention","sliding_attention","full_attention"])";
  EXPECT_EQ(windows(R"("use_sliding_window":true,"sliding_window":9,)" + types),
            (Windows{9, 0, 9, 0}));
  EXPECT_EQ(fault(R"({"model_type":"qwen2","num_hidden_layers":4,)" + types + "}").path,
            "model.layer_types")
      << "without a window";
}

TEST(ModelParse, a_feature_that_we_lack_is_refused_only_when_active) {
  const std::string qwen = R"({"model_type":"qwen2","num_hidden_layers":4,)";
  legal(qwen + R"("use_sliding_window":true,"max_window_layers":4})");
  legal(qwen + R"("use_sliding_window":true,"sliding_window":null,"max_window_layers":2})");
  legal(qwen + R"("use_sliding_window":false,"sliding_window":4096,"max_window_layers":2})");
  legal(qwen +
        R"("layer_types":["full_attention","full_attention","full_attention","full_attention"]})");
  EXPECT_EQ(fault(qwen + R"("layer_types":["full_attention"]})").path, "model.layer_types");
  EXPECT_EQ(fault(qwen + R"("layer_types":["chunked_attention"]})").path, "model.layer_types");
  for (const char* key :
       {R"("pretraining_tp":2)", R"("hidden_act":"gelu")", R"("quantization_config":{"bits":4})",
        R"("partial_rotary_factor":0.5)", R"("add_cross_attention":true)"}) {
    EXPECT_EQ(fault(llama(key)).message, "not in this version") << key;
  }
  legal(llama(
      R"("pretraining_tp":1,"hidden_act":"silu","quantization_config":null,"partial_rotary_factor":1.0)"));
  const auto gpt2 = [](const char* key) {
    return fmt::format(R"({{"model_type":"gpt2",{}}})", key);
  };
  for (const char* key : {R"("scale_attn_by_inverse_layer_idx":true)",
                          R"("scale_attn_weights":false)", R"("activation_function":"relu")"}) {
    EXPECT_EQ(fault(gpt2(key)).message, "not in this version") << key;
  }
  legal(gpt2(R"("activation_function":"gelu_pytorch_tanh","reorder_and_upcast_attn":true)"));
}

TEST(ModelParse, a_rate_of_dropout_leaves_something) {
  legal(llama(R"("attention_dropout":0.999)"));
  legal(llama(R"("attention_dropout":null)"));
  for (const char* rate : {"1", "1.0", "-0.1", "1.5", "\"a\""})
    EXPECT_EQ(fault(llama(fmt::format(R"("attention_dropout":{})", rate).c_str())).path,
              "model.attention_dropout")
        << rate;
}

TEST(ModelParse, sizes_that_do_not_fit_together_are_refused_with_the_numbers) {
  const Problem heads = fault(R"({"model_type":"llama","hidden_size":64,"num_attention_heads":3})");
  EXPECT_EQ(heads.path, "model.num_attention_heads");
  EXPECT_EQ(heads.nearest, "hidden_size = 63 or 66");
  legal(R"({"model_type":"llama","hidden_size":64,"num_attention_heads":3,"head_dim":24})");
  const Problem kv = fault(llama(R"("num_key_value_heads":3)"));
  EXPECT_EQ(kv.path, "model.num_key_value_heads");
  EXPECT_EQ(kv.nearest, "2");
  EXPECT_EQ(fault(R"({"model_type":"qwen2","num_attention_heads":8})").path,
            "model.num_key_value_heads");
  EXPECT_EQ(legal(R"({"model_type":"qwen2","num_attention_heads":8,"num_key_value_heads":null})")
                .layer(0)
                .attention.kv_heads,
            8);
  EXPECT_EQ(fault(llama(R"("head_dim":15)")).path, "model.head_dim");
}

TEST(ModelParse, sizes_out_of_range_and_of_the_wrong_type_are_all_reported) {
  const Read result = read_text(
      R"({"model_type":"llama","hidden_size":0,"num_hidden_layers":5000,"vocab_size":16777217,
    "intermediate_size":"128","num_attention_heads":true,"max_position_embeddings":-1,"rms_norm_eps":"x",
    "tie_word_embeddings":1,"head_dim":1.5,"num_key_value_heads":9223372036854775807,"eos_token_id":-5})");
  EXPECT_EQ(result.problems.size(), 11U) << format_problems(result.problems);
}

TEST(ModelParse, an_unknown_key_is_a_problem_inline_and_a_note_from_a_file) {
  EXPECT_EQ(fault(llama(R"("hiden_act":"silu")")).nearest, "hidden_act");
  const TemporaryDirectory folder;
  folder.write("config.json", llama(R"("my_key":1)"));
  const Read from_folder = read(folder.path().string());
  EXPECT_TRUE(from_folder.problems.empty());
  ASSERT_EQ(from_folder.notes.size(), 1U);
  EXPECT_NE(from_folder.notes[0].find("my_key"), std::string::npos);
  const Read overridden =
      read(Json::Object{{"path", (folder / "config.json").string()}, {"other_key", 1}});
  EXPECT_EQ(paths_of(overridden.problems), std::vector<std::string>{"model.other_key"});
}

TEST(ModelParse, keys_beside_a_path_override_the_file) {
  const TemporaryDirectory folder;
  folder.write("config.json", R"({"model_type":"gpt2","n_layer":5,"n_embd":64,"n_head":4})");
  const Read result =
      read(Json::Object{{"path", folder.path().string()}, {"n_layer", 2}, {"hidden_size", 32}});
  EXPECT_TRUE(result.problems.empty()) << format_problems(result.problems);
  EXPECT_EQ(result.model.layer_count(), 2);
  EXPECT_EQ(result.model.hidden, 32);
  EXPECT_EQ(result.model.layer(0).attention.heads, 4);
}

TEST(ModelParse, a_fault_of_a_file_names_it) {
  const TemporaryDirectory folder;
  const auto file = folder.write("m.json", R"({"model_type":"gpt2","n_layer":0})");
  const Read result = read(file.string());
  ASSERT_EQ(result.problems.size(), 1U);
  EXPECT_NE(result.problems[0].message.find("m.json"), std::string::npos);
  EXPECT_THROW(read((folder / "none.json").string()), DataError);
  EXPECT_THROW(read(folder.write("twice.json", R"({"n_layer":1,"n_layer":2})").string()),
               ConfigError);
  EXPECT_THROW(read(folder.write("list.json", "[]").string()), ConfigError);
}

TEST(ModelParse, of_several_end_tokens_the_first_ends_a_document) {
  const ModelConfig model = legal(llama(R"("eos_token_id":[7,9],"bos_token_id":null)"));
  EXPECT_EQ(model.end_token, 7);
  EXPECT_EQ(model.bos_token, -1);
  EXPECT_EQ(model_keys_json(model).find("eos_token_id")->dump(), "[7,9]");
  EXPECT_EQ(fault(llama(R"("eos_token_id":[7,"x"])")).path, "model.eos_token_id");
}

TEST(ModelParse, a_config_takes_its_model_from_hugging_face_weights) {
  const TemporaryDirectory folder;
  folder.write("config.json", R"({"model_type":"gpt2","n_layer":5})");
  const LoadedConfig loaded = load_with({"model=null", "init.weights=" + folder.path().string()});
  EXPECT_TRUE(loaded.problems.empty()) << format_problems(loaded.problems);
  EXPECT_EQ(loaded.config.model.layer_count(), 5);
  EXPECT_EQ(only_problem(load_with({"model=null"})).path, "model");
  const Problem missing = only_problem(load_with({"model=null", "init.weights=/no/such"}));
  EXPECT_EQ(missing.path, "init.weights");
  EXPECT_EQ(missing.code, ExitCode::kData);
}

TEST(ModelKeys, written_out_they_give_the_same_model) {
  for (
      const std::string& text :
      {llama(""),
       llama(
           R"("rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,
                            "original_max_position_embeddings":512},"use_cache":false,"attention_bias":true)"),
       llama(
           R"("rope_scaling":{"type":"yarn","factor":4,"mscale":0.7,"mscale_all_dim":1.0,"truncate":false})"),
       std::string(R"({"model_type":"qwen2"})"),
       std::string(R"({"model_type":"qwen3","tie_word_embeddings":true})"),
       std::string(
           R"({"model_type":"ministral","num_hidden_layers":2,"layer_types":["sliding_attention","full_attention"]})"),
       std::string(R"({"model_type":"ministral3","num_hidden_layers":2})"),
       std::string(
           R"({"model_type":"smollm3","num_hidden_layers":2,"no_rope_layers":[0,1],"rope_theta":5e6})"),
       std::string(
           R"({"model_type":"smollm3","num_hidden_layers":2,"no_rope_layer_interval":1,"rope_theta":7})"),
       std::string(R"({"model_type":"olmo2","attention_bias":true})"),
       std::string(R"({"model_type":"olmo3","num_hidden_layers":5,"rope_theta":9e5})"),
       std::string(R"({"model_type":"olmo3","num_hidden_layers":2})"),
       std::string(
           R"({"model_type":"gemma3_text","num_hidden_layers":7,"query_pre_attn_scalar":168,"eos_token_id":[1,106],
              "rope_scaling":{"rope_type":"linear","factor":8},"rope_local_base_freq":5e3})"),
       std::string(R"({"model_type":"gemma3_text","sliding_window_pattern":2})"),
       std::string(R"({"model_type":"mixtral","sliding_window":7,"output_router_logits":true})"),
       std::string(R"({"model_type":"olmoe","num_experts":9,"router_aux_loss_coef":0.5})"),
       std::string(
           R"({"model_type":"qwen3_moe","num_hidden_layers":3,"mlp_only_layers":[1],"num_local_experts":9,
              "use_sliding_window":true,"norm_topk_prob":true})"),
       std::string(
           R"({"model_type":"qwen2_moe","num_hidden_layers":4,"decoder_sparse_step":2,"qkv_bias":false,
              "intermediate_size":24,"sliding_window":0})"),
       std::string(R"({"model_type":"deepseek_v3","scoring_func":"sigmoid","ep_size":1})"),
       std::string(
           R"({"model_type":"deepseek_v3","num_hidden_layers":4,"num_key_value_heads":null,"q_lora_rank":null,
              "num_attention_heads":4,"v_head_dim":256,"rope_interleave":null,"norm_topk_prob":null,
              "rope_scaling":{"type":"yarn","factor":40,"mscale":1.0,"mscale_all_dim":1.0}})"),
       std::string(R"({"model_type":"gpt_oss","num_hidden_layers":3})"),
       std::string(
           R"({"model_type":"gpt_oss","num_hidden_layers":2,"attention_bias":false,"swiglu_limit":5,"rope_theta":7e3,
              "layer_types":["full_attention","sliding_attention"],"sliding_window":9,"num_experts":7})"),
       std::string(R"({"model_type":"gpt2","resid_pdrop":0.1,"n_ctx":1024})")}) {
    const ModelConfig model = legal(text);
    EXPECT_EQ(legal(model_keys_json(model).dump()), model) << text;
    EXPECT_EQ(model_keys_json(model), model.source);
    // An export says also class, type and token ids.
    ModelConfig from_export = legal(hf_config_json(model, DType::kBF16).dump());
    from_export.source = model.source;
    EXPECT_EQ(from_export, model) << text;
  }
}

TEST(ModelKeys, token_ids_that_nobody_gave_stay_out_and_stand_in_an_export) {
  const ModelConfig model = legal(llama(""));
  EXPECT_EQ(model.end_token, 2);
  EXPECT_EQ(model.source.find("eos_token_id"), nullptr);
  EXPECT_EQ(*hf_config_json(model, DType::kF32).find("eos_token_id"), Json(2));
  ModelConfig changed = model;
  changed.end_token = 256;
  EXPECT_EQ(*model_keys_json(changed).find("eos_token_id"), Json(256));
  EXPECT_TRUE(legal(llama(R"("eos_token_id":null)")).source.find("eos_token_id")->is_null());
}

TEST(HfConfig, says_class_and_type) {
  const Json json = hf_config_json(legal(R"({"model_type":"qwen3"})"), DType::kBF16);
  EXPECT_EQ(json.find("architectures")->dump(), R"(["Qwen3ForCausalLM"])");
  EXPECT_EQ(*json.find("dtype"), Json("bfloat16"));
  EXPECT_EQ(*json.find("torch_dtype"), Json("bfloat16"));
  EXPECT_EQ(json.find("rope_scaling")->is_null(), true);
  EXPECT_EQ(*json.find("rope_parameters")->find("rope_theta"), Json(10000.0));
}

}  // namespace
}  // namespace trireme
