#include "config/model_config.h"

#include <algorithm>

#include "config/model_keys.h"
#include "config/model_parse.h"
#include "config/rope_parse.h"

namespace trireme {

namespace {

/// A token id that nobody gave and that is the family's default stays out: whoever knows the
/// tokenizer may then put the tokenizer's own in its place.
bool says_token(const ModelConfig& model, std::string_view key, std::int64_t id,
                std::int64_t otherwise) {
  return model.source.find(key) != nullptr || id != otherwise;
}

/// null, the number, or the list given of which it is the first.
Json token_json(const ModelConfig& model, std::string_view key, std::int64_t id) {
  if (id < 0) return {};
  const Json* given = model.source.find(key);
  if (given != nullptr && given->is_array() && !given->as_array().empty() &&
      given->as_array()[0] == Json(id)) {
    return *given;
  }
  return id;
}

void add_llama_like(Json& json, const ModelConfig& model) {
  const AttentionConfig& attention = model.layer(0).attention;
  json["hidden_size"] = model.hidden;
  json["intermediate_size"] = model.layer(0).mlp.ffn;
  json["num_hidden_layers"] = model.layer_count();
  json["num_attention_heads"] = attention.heads;
  json["num_key_value_heads"] = attention.kv_heads;
  json["head_dim"] = attention.head_dim;
  json["hidden_act"] = "silu";
  json["max_position_embeddings"] = model.max_positions;
  json["rms_norm_eps"] = model.norm.eps;
  const bool biases = model.family == Family::kLlama || model.family == Family::kSmolLm3;
  if (biases || model.family == Family::kQwen3) json["attention_bias"] = attention.qkv_bias;
  if (biases) json["mlp_bias"] = model.layer(0).mlp.bias;
  if (model.family == Family::kMistral || model.family == Family::kMinistral3)
    json["sliding_window"] = attention.window == 0 ? Json() : Json(attention.window);
  const auto rotates = [](const LayerConfig& layer) { return layer.attention.rope.has_value(); };
  const auto first = std::find_if(model.layers.begin(), model.layers.end(), rotates);
  if (first == model.layers.end()) return;
  // transformers 5 reads rope_parameters, transformers 4 the other two.
  const RopeConfig& rope = *first->attention.rope;
  json["rope_parameters"] = rope_parameters_json(rope);
  json["rope_theta"] = rope.theta;
  json["rope_scaling"] = rope.kind == RopeKind::kDefault ? Json() : *json.find("rope_parameters");
}

void add_gpt2(Json& json, const ModelConfig& model) {
  json["n_embd"] = model.hidden;
  json["n_inner"] = model.layer(0).mlp.ffn;
  json["n_layer"] = model.layer_count();
  json["n_head"] = model.layer(0).attention.heads;
  json["n_positions"] = model.max_positions;
  json["layer_norm_epsilon"] = model.norm.eps;
  json["activation_function"] = "gelu_new";
}

}  // namespace

std::string_view name_of(Family family) {
  switch (family) {
    case Family::kLlama:
      return "llama";
    case Family::kMistral:
      return "mistral";
    case Family::kMinistral:
      return "ministral";
    case Family::kMinistral3:
      return "ministral3";
    case Family::kQwen2:
      return "qwen2";
    case Family::kQwen3:
      return "qwen3";
    case Family::kSmolLm3:
      return "smollm3";
    case Family::kGpt2:
      return "gpt2";
  }
  return "";
}

Json model_keys_json(const ModelConfig& model) {
  Json json = Json::object();
  json["model_type"] = name_of(model.family);
  json["vocab_size"] = model.vocab_size;
  model.family == Family::kGpt2 ? add_gpt2(json, model) : add_llama_like(json, model);
  json["tie_word_embeddings"] = model.tied_embeddings;
  json["initializer_range"] = model.init_std;
  const TokenDefaults tokens = default_tokens(model.family);
  if (says_token(model, "bos_token_id", model.bos_token, tokens.bos)) {
    json["bos_token_id"] = token_json(model, "bos_token_id", model.bos_token);
  }
  if (says_token(model, "eos_token_id", model.end_token, tokens.eos)) {
    json["eos_token_id"] = token_json(model, "eos_token_id", model.end_token);
  }
  if (!model.source.is_object()) return json;
  for (const auto& [name, value] : model.source.as_object()) {
    const ModelKey* key = find_model_key(model.family, name);
    if (key != nullptr && json.find(name) == nullptr) json[name] = value;
  }
  return json;
}

std::string shape_difference(const ModelConfig& saved, const ModelConfig& wanted,
                             std::string_view where, std::string_view where_wanted) {
  const Json a = model_keys_json(saved), b = model_keys_json(wanted);
  static constexpr std::string_view kShape[] = {
      "model_type",  "hidden_size",         "n_embd",         "num_hidden_layers",
      "n_layer",     "num_attention_heads", "n_head",         "num_key_value_heads",
      "head_dim",    "intermediate_size",   "n_inner",        "vocab_size",
      "n_positions", "tie_word_embeddings", "attention_bias", "mlp_bias"};
  for (const std::string_view key : kShape) {
    const Json* x = a.find(key);
    const Json* y = b.find(key);
    if (x == nullptr && y == nullptr) continue;
    if (x == nullptr || y == nullptr || !(*x == *y)) {
      return fmt::format("model.{}: {} in {}, {} in {}", key, x ? x->dump() : "absent", where,
                         y ? y->dump() : "absent", where_wanted);
    }
  }
  return "";
}

Json hf_config_json(const ModelConfig& model, DType dtype) {
  static constexpr std::string_view kClasses[] = {
      "LlamaForCausalLM", "MistralForCausalLM", "MinistralForCausalLM", "Ministral3ForCausalLM",
      "Qwen2ForCausalLM", "Qwen3ForCausalLM",   "SmolLM3ForCausalLM",   "GPT2LMHeadModel"};
  Json json = Json::object();
  json["architectures"] = Json::Array{Json(kClasses[static_cast<std::size_t>(model.family)])};
  const Json keys = model_keys_json(model);
  for (const auto& [name, value] : keys.as_object()) {
    if (name != "architectures" && name != "_name_or_path" && name != "transformers_version")
      json[name] = value;
  }
  json["bos_token_id"] = token_json(model, "bos_token_id", model.bos_token);
  json["eos_token_id"] = token_json(model, "eos_token_id", model.end_token);
  const std::string_view type = dtype == DType::kBF16 ? "bfloat16" : "float32";
  json["dtype"] = type;
  json["torch_dtype"] = type;
  return json;
}

}  // namespace trireme
