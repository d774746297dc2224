// Models of all families, at odd and tiny sizes.

#include <algorithm>

#include "e2e/random_configs/random_config.h"

namespace trireme {

namespace {

std::int64_t divisor_of(Dice& dice, std::int64_t number) {
  std::vector<std::int64_t> divisors;
  for (std::int64_t d = 1; d <= number; ++d) {
    if (number % d == 0) divisors.push_back(d);
  }
  return dice.pick(divisors);
}

Json draw_rope(Dice& dice, std::int64_t positions) {
  Json rope;
  const std::string kind = dice.pick<std::string>({"default", "linear", "llama3", "yarn"});
  rope["rope_type"] = kind;
  if (kind == "linear") rope["factor"] = dice.pick({2.0, 0.5, 8.0});
  if (kind == "llama3") {
    rope["factor"] = 8.0;
    rope["low_freq_factor"] = dice.pick({1.0, 0.25});
    rope["high_freq_factor"] = 4.0;
    rope["original_max_position_embeddings"] = std::max<std::int64_t>(1, positions / 2);
  }
  if (kind == "yarn") {
    rope["factor"] = dice.pick({4.0, 1.5});
    rope["original_max_position_embeddings"] = std::max<std::int64_t>(1, positions / 4);
    if (dice.percent(30)) rope["beta_fast"] = dice.pick({32.0, 16.0});
    if (dice.percent(30)) rope["attention_factor"] = 1.25;
    if (dice.percent(30)) rope["truncate"] = false;
    if (dice.percent(20)) rope["mscale"] = 0.7;
  }
  return rope;
}

/// Keys of a downloaded config.json that have no effect on training, and features switched off.
void add_companions(Dice& dice, Json& model, const std::string& family) {
  if (dice.percent(20)) model["architectures"] = Json::Array{"Something"};
  if (dice.percent(20)) model["torch_dtype"] = "bfloat16";
  if (dice.percent(20)) model["use_cache"] = true;
  if (dice.percent(15)) model["transformers_version"] = "5.0.0";
  if (dice.percent(15)) model["bos_token_id"] = dice.pick<Json>({0, nullptr, 1});
  if (dice.percent(15))
    model["eos_token_id"] = dice.pick<Json>({0, nullptr, 1, Json::Array{0, 1}, 1 << 20});
  if (dice.percent(10)) model["pad_token_id"] = nullptr;
  if (dice.percent(15)) {
    model[family == "gpt2" ? "attn_pdrop" : "attention_dropout"] = dice.pick({0.0, 0.1, 0.9});
  }
  if (family != "gpt2" && dice.percent(10)) model["hidden_act"] = dice.word({"silu", "swish"});
  if (family == "llama" && dice.percent(10)) model["pretraining_tp"] = 1;
  if (family.starts_with("qwen")) {
    if (dice.percent(15)) model["sliding_window"] = dice.pick<Json>({nullptr, 4096, 7});
    if (dice.percent(20)) {
      model["use_sliding_window"] = dice.percent(60);
      if (dice.percent(70)) model["max_window_layers"] = dice.pick<Json>({0, 1, 28});
    }
    if (family != "qwen3_moe" && dice.percent(10)) {
      Json types = Json::array();
      for (std::int64_t i = 0; i < model.find("num_hidden_layers")->as_integer(); ++i)
        types.push_back("full_attention");
      model["layer_types"] = types;
    }
  }
}

Json draw_gpt2(Dice& dice, const Situation& situation, std::int64_t layers) {
  // GPT-2 also takes the common names.
  const bool common = dice.percent(30);
  const std::int64_t heads = dice.pick<std::int64_t>({1, 2, 3, 4, 7});
  const std::int64_t head_dim = dice.pick<std::int64_t>({2, 4, 6, 8, 10, 16});
  Json model;
  model["model_type"] = "gpt2";
  model["vocab_size"] = situation.vocabulary;
  model[common ? "hidden_size" : "n_embd"] = heads * head_dim;
  model[common ? "num_attention_heads" : "n_head"] = heads;
  model[common ? "num_hidden_layers" : "n_layer"] = layers;
  model[common ? "max_position_embeddings" : "n_positions"] = situation.positions;
  if (dice.percent(40)) {
    model[common ? "intermediate_size" : "n_inner"] =
        dice.pick<Json>({dice.between(1, 90), nullptr});
  }
  if (dice.percent(20)) model["layer_norm_epsilon"] = dice.pick({1e-5, 1e-3, 1e-12});
  if (dice.percent(15)) model["activation_function"] = dice.word({"gelu_new", "gelu_pytorch_tanh"});
  if (dice.percent(10)) model["n_ctx"] = 1024;
  return model;
}

/// Of DeepSeek-V3: heads come from latents.
void add_latents(Dice& dice, Json& model) {
  model["num_key_value_heads"] = *model.find("num_attention_heads");
  model.erase("head_dim");
  model["q_lora_rank"] = dice.percent(30) ? Json() : Json(dice.between(1, 40));
  model["kv_lora_rank"] = dice.between(1, 40);
  model["qk_nope_head_dim"] = 2 * dice.between(1, 10);
  model["qk_rope_head_dim"] = 2 * dice.between(1, 6);
  model["v_head_dim"] = 2 * dice.between(1, 12);
  if (dice.percent(30)) model["rope_interleave"] = dice.percent(50);
  if (!dice.percent(25)) return;  // sizes that products in fp8 take
  model["hidden_size"] = 16 * dice.between(1, 4);
  model["intermediate_size"] = model["moe_intermediate_size"] = 96;
  if (!model["q_lora_rank"].is_null()) model["q_lora_rank"] = 16 * dice.between(1, 3);
  model["kv_lora_rank"] = 16 * dice.between(1, 3);
  for (const char* dim : {"qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}) model[dim] = 16;
}

/// The MLP that all tokens share, or that of layers without experts, is as wide as `ffn`.
void add_experts(Dice& dice, Json& model, const std::string& family) {
  const std::int64_t count = dice.pick<std::int64_t>({1, 2, 3, 4, 6, 8, 9});
  const Json ffn = *model.find("intermediate_size");
  const bool deepseek = family == "deepseek_v3", sigmoid = family == "glm4_moe" || deepseek;
  model[sigmoid                                      ? "n_routed_experts"
        : family == "mixtral" || family == "gpt_oss" ? "num_local_experts"
                                                     : "num_experts"] = count;
  model["num_experts_per_tok"] = dice.between(1, std::min<std::int64_t>(count, 4));
  if (family.starts_with("qwen"))
    model["moe_intermediate_size"] = dice.percent(30) ? 48 : dice.between(1, 40);
  if (family == "qwen2_moe") model["shared_expert_intermediate_size"] = ffn;
  if (family != "mixtral" && family != "gpt_oss" && dice.percent(50))
    model["norm_topk_prob"] = dice.percent(50);
  if (family == "gpt_oss") {
    if (dice.percent(40)) model["swiglu_limit"] = dice.pick({0.05, 7.0, 1e6});
    if (dice.percent(20)) model["swiglu_alpha"] = dice.pick({1.0, 1.702});
  }
  if (!sigmoid) {
    if (dice.percent(40)) model["output_router_logits"] = dice.percent(70);
    if (dice.percent(30)) model["router_aux_loss_coef"] = dice.pick({0.0, 0.01, 1.0});
    return;
  }
  model["moe_intermediate_size"] = ffn;
  model["first_k_dense_replace"] =
      dice.between(0, model.find("num_hidden_layers")->as_integer() - 1);
  if (dice.percent(30)) model["routed_scaling_factor"] = dice.pick({1.0, 2.5});
  if (!deepseek && dice.percent(40)) model["use_qk_norm"] = dice.percent(60);
  if (dice.percent(30)) model["n_shared_experts"] = dice.between(1, 2);
  if (count % 2 == 0 && dice.percent(40)) {
    model["n_group"] = 2;
    model["topk_group"] = dice.between(1, 2);
    model["num_experts_per_tok"] = 1;
  }
  if (deepseek) {
    if (model.find("n_group") == nullptr) model["n_group"] = model["topk_group"] = 1;
    return add_latents(dice, model);
  }
  // Half of a head rotates where nothing is said, in pairs.
  const Json* given = model.find("head_dim");
  const std::int64_t head_dim = given != nullptr && given->is_integer()
                                    ? given->as_integer()
                                    : model.find("hidden_size")->as_integer() /
                                          model.find("num_attention_heads")->as_integer();
  if (head_dim % 4 != 0 || dice.percent(30)) model["partial_rotary_factor"] = 1.0;
}

/// Without a size of its own a head is hidden / heads; these families take a size for a missing
/// one.
bool has_size_for_heads(const std::string& family) {
  return family == "qwen3" || family == "gpt_oss" || family == "ministral3" ||
         family == "gemma3_text";
}

Json draw_llama_like(Dice& dice, const Situation& situation, std::int64_t layers) {
  const std::string& family = situation.family;
  const std::int64_t heads = dice.pick<std::int64_t>({1, 2, 3, 4, 6, 8});
  const std::int64_t head_dim = 2 * dice.pick<std::int64_t>({1, 2, 3, 4, 5, 8, 16});
  Json model;
  model["model_type"] = family;
  model["vocab_size"] = situation.vocabulary;
  model["num_hidden_layers"] = layers;
  model["num_attention_heads"] = heads;
  const bool two_ropes = family == "olmo3" || family == "gemma3_text",
             layered = two_ropes || family == "gpt_oss";
  if (has_size_for_heads(family) || dice.percent(30)) {
    model["hidden_size"] = dice.between(1, 70);
    model["head_dim"] = head_dim;
  } else {
    model["hidden_size"] = heads * head_dim;
    if (dice.percent(15)) model["head_dim"] = nullptr;
  }
  if (family != "llama" || dice.percent(60))
    model["num_key_value_heads"] = dice.percent(10) ? Json() : Json(divisor_of(dice, heads));
  model["intermediate_size"] = dice.between(1, 90);
  if (dice.percent(12)) {  // sizes that products in fp8 take
    model["head_dim"] = dice.pick({16, 32});
    model["hidden_size"] = 16 * dice.between(1, 4);
    model["intermediate_size"] = 96;
  }
  if (situation.positions != 2048) model["max_position_embeddings"] = situation.positions;
  if (dice.percent(25)) model["rms_norm_eps"] = dice.pick({1e-6, 1e-5, 1e-3, 1e-12});
  if (dice.percent(20)) {
    const char* name = two_ropes ? "rope_scaling" : dice.word({"rope_parameters", "rope_scaling"});
    model[name] = draw_rope(dice, situation.positions);
  }
  if (dice.percent(20)) model["rope_theta"] = dice.pick<Json>({500000.0, 10000, 2.5});
  const bool biases = family == "llama" || family.starts_with("qwen3") || family == "olmo2" ||
                      family == "olmoe" || family == "glm4_moe" || family == "deepseek_v3" ||
                      layered;
  if (biases && dice.percent(25)) model["attention_bias"] = dice.percent(50);
  if (family == "llama" && dice.percent(25)) model["mlp_bias"] = dice.percent(50);
  if (family == "ministral" && dice.percent(60)) {
    model["sliding_window"] = dice.pick<Json>({situation.sequence_length + 64, 1, 5, 64});
  }
  if (family == "smollm3") {
    if (dice.percent(50)) model["no_rope_layer_interval"] = dice.between(1, 3);
    if (dice.percent(40)) model["use_sliding_window"] = dice.percent(70);
    if (dice.percent(40)) model["sliding_window"] = dice.pick<Json>({nullptr, 1, 5, 64});
  }
  if (layered && dice.percent(60)) model["sliding_window"] = dice.pick<Json>({1, 5, 64});
  if (family == "gemma3_text") {
    if (dice.percent(50)) model["sliding_window_pattern"] = dice.between(1, 3);
    if (dice.percent(40)) model["query_pre_attn_scalar"] = dice.pick<Json>({3, 64, 0.5});
    if (dice.percent(30)) model["rope_local_base_freq"] = dice.pick<Json>({5000, 2.5});
  }
  if (situation.experts) add_experts(dice, model, family);
  if (family == "mistral" && dice.percent(60)) {  // a missing one is 4096
    model["sliding_window"] = dice.pick<Json>({nullptr, situation.sequence_length + 64, 1, 5, 64});
  }
  return model;
}

}  // namespace

Json draw_model(Dice& dice, std::int64_t vocabulary, Situation& situation) {
  situation.family = dice.pick<std::string>({"llama", "mistral", "ministral", "ministral3", "qwen2",
                                             "qwen3", "smollm3", "olmo2", "olmo3", "gemma3_text",
                                             "gpt2", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe",
                                             "glm4_moe", "deepseek_v3", "gpt_oss"});
  situation.experts = situation.family.ends_with("moe") || situation.family == "mixtral" ||
                      situation.family == "deepseek_v3" || situation.family == "gpt_oss";
  situation.vocabulary =
      vocabulary > 0 && dice.percent(60)
          ? vocabulary
          : std::max<std::int64_t>(vocabulary, 1) + dice.pick<std::int64_t>({0, 1, 7, 100, 1000});
  situation.positions = situation.family == "gpt2"
                            ? situation.sequence_length + dice.pick<std::int64_t>({0, 1, 32})
                            : dice.pick<std::int64_t>({1, 64, 2048, 32768});
  const std::int64_t layers = dice.pick<std::int64_t>({1, 1, 2, 2, 3, 5});
  Json model = situation.family == "gpt2" ? draw_gpt2(dice, situation, layers)
                                          : draw_llama_like(dice, situation, layers);
  if (dice.percent(4)) {  // enough memory to compare with the plan's
    model["vocab_size"] = situation.vocabulary = 20000 + dice.between(0, 99);
    if (model.find("hidden_size") != nullptr && model.find("head_dim") != nullptr &&
        !model.find("head_dim")->is_null())
      model["hidden_size"] = 384;
  }
  if (dice.percent(50)) model["tie_word_embeddings"] = dice.percent(50);
  if (dice.percent(20)) model["initializer_range"] = dice.pick<Json>({0.02, 0.2, 1, 1e-6});
  // Some token ids are beyond the vocabulary on purpose: that is a note, no fault.
  if (situation.family != "gpt2" || model.find("num_hidden_layers") == nullptr)
    add_companions(dice, model, situation.family);
  return model;
}

namespace {

/// One thing about a model that is wrong, or legal and at an edge.
class ModelOddity {
 public:
  ModelOddity(Dice& dice, Json& config, RandomConfig& drawn, const Situation& situation)
      : dice_(dice),
        model_(config["model"]),
        drawn_(drawn),
        situation_(situation),
        gpt2_(situation.family == "gpt2"),
        heads_(gpt2_ && model_.find("n_head") != nullptr ? "n_head" : "num_attention_heads"),
        hidden_(gpt2_ && model_.find("n_embd") != nullptr ? "n_embd" : "hidden_size") {}

  void add() {
    const std::int64_t which = dice_.between(0, 16);
    which < 5 ? add_size(which) : add_other(which);
  }

 private:
  void put(const std::string& key, Json value, const char* refused_at) {
    drawn_.oddities.push_back("model." + key + " = " + text_of(value));
    model_[key] = std::move(value);
    if (refused_at != nullptr) drawn_.must_refuse.push_back(std::string("model.") + refused_at);
  }

  void add_size(std::int64_t which) {
    switch (which) {
      case 0:
        return put("vocab_size", dice_.pick<Json>({0, -1, 1.5, "257", true, 1 << 25, raw("1e400")}),
                   "vocab_size");
      case 1: {
        const char* own = gpt2_ ? "n_head" : "num_attention_heads";
        model_.erase(gpt2_ ? "num_attention_heads" : "n_head");
        return put(own, dice_.pick<Json>({0, -2, 1.5, "2", Json::array(), 1 << 20}), own);
      }
      case 2:  // heads that do not divide, unless a head's size is given
        if (model_.find("head_dim") != nullptr) model_.erase("head_dim");
        if (has_size_for_heads(situation_.family)) return put("head_dim", 3, "head_dim");
        model_[hidden_] = 30;
        if (!gpt2_) model_.erase("num_key_value_heads");
        if (!gpt2_) model_["num_key_value_heads"] = 7;
        model_.erase(gpt2_ ? "num_attention_heads" : "n_head");
        return put(gpt2_ ? "n_head" : heads_, 7, gpt2_ ? "n_head" : "num_attention_heads");
      case 3:
        if (gpt2_) return put("n_inner", dice_.pick<Json>({0, -1, "x"}), "n_inner");
        return put("num_key_value_heads", dice_.pick<Json>({0, 13, "x", 2.5}),
                   "num_key_value_heads");
      default:
        if (gpt2_) return put("head_dim", 8, "head_dim");  // no key of gpt2
        return put("head_dim", dice_.pick<Json>({3, 7, -2, 1 << 20}), "head_dim");
    }
  }

  void add_other(std::int64_t which) {
    switch (which) {
      case 5:
        return put(dice_.word({"hiden_size", "n_embedding", "layers", "dropout_rate", "x"}), 4,
                   nullptr),
               drawn_.must_refuse.push_back("model." + model_.as_object().back().first);
      case 6:
        return put("model_type", dice_.pick<Json>({"mamba", "phi3", "gemma2", "", 3, nullptr}),
                   "model_type");
      case 7:
        return put("initializer_range", dice_.pick<Json>({-0.02, 1.5, "x", raw("1e999")}),
                   "initializer_range");
      case 8:
        return put("tie_word_embeddings", dice_.pick<Json>({"true", 1, Json::array()}),
                   "tie_word_embeddings");
      case 9:
        return put("quantization_config", Json::Object{{"bits", 4}}, "quantization_config");
      case 10: {
        if (gpt2_)
          return put("activation_function", dice_.word({"relu", "gelu"}), "activation_function");
        Json rope;
        rope["rope_type"] = dice_.word({"dynamic", "longrope", "su"});
        rope["factor"] = 2.0;
        model_.erase("rope_parameters");
        return put("rope_scaling", rope, "rope_scaling.rope_type");
      }
      case 11:
        if (situation_.family.starts_with("qwen") && situation_.family != "qwen3_moe") {
          return put("layer_types", Json::Array{"chunked_attention"}, "layer_types");
        }
        return put("is_encoder_decoder", true, "is_encoder_decoder");
      case 16:  // a head of a size that attention lacks
        drawn_.may_refuse = true;
        if (!gpt2_) return put("head_dim", 258, nullptr);
        model_[hidden_] = 15;
        return put(heads_, dice_.pick<Json>({3, 5}), nullptr);
      case 12:  // legal, and all weights 0
        drawn_.finite = false;
        return put("initializer_range", 0, nullptr);
      case 13:
        drawn_.finite = false;
        return put(gpt2_ ? "layer_norm_epsilon" : "rms_norm_eps", dice_.pick<Json>({0, 1}),
                   nullptr);
      case 14:  // far too large to run, and to be reported so before anything is allocated
        drawn_.affordable = false;
        drawn_.may_refuse = true;
        return put("vocab_size", 1 << 24, nullptr);
      default:
        drawn_.may_refuse = true;
        return put(gpt2_ ? "n_positions" : "max_position_embeddings",
                   dice_.pick<Json>({1, 2, std::int64_t{1} << 22}), nullptr);
    }
  }

  Dice& dice_;
  Json& model_;
  RandomConfig& drawn_;
  const Situation& situation_;
  const bool gpt2_;
  const std::string heads_, hidden_;
};

}  // namespace

void add_model_oddity(Dice& dice, Json& config, RandomConfig& drawn, Situation& situation) {
  ModelOddity(dice, config, drawn, situation).add();
}

}  // namespace trireme
