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

/// That of the first layer that `has` one.
template <class Has>
const RopeConfig* rope_of(const ModelConfig& model, const Has& has) {
  for (const LayerConfig& layer : model.layers)
    if (layer.attention.rope && has(layer.attention)) return &*layer.attention.rope;
  return nullptr;
}

/// transformers 5 reads rope_parameters, transformers 4 the other two.
void add_rope(Json& json, const ModelConfig& model) {
  const RopeConfig* rope = rope_of(model, [](const AttentionConfig&) { return true; });
  if (rope == nullptr) return;
  json["rope_parameters"] = rope_parameters_json(*rope);
  json["rope_theta"] = rope->theta;
  if (traits_of(model.family).rotated_part > 0) json["partial_rotary_factor"] = rope->part;
  json["rope_scaling"] = rope->kind == RopeKind::kDefault ? Json() : *json.find("rope_parameters");
}

/// The same of layers that see all and of those with a window.
void add_ropes_by_type(Json& json, const ModelConfig& model) {
  Json parameters = Json::object();
  const RopeConfig* full = rope_of(model, [](const AttentionConfig& of) { return of.window == 0; });
  const RopeConfig* sliding =
      rope_of(model, [](const AttentionConfig& of) { return of.window > 0; });
  if (full != nullptr) {
    parameters["full_attention"] = rope_parameters_json(*full);
    json["rope_theta"] = full->theta;
    json["rope_scaling"] =
        full->kind == RopeKind::kDefault ? Json() : *parameters.find("full_attention");
  }
  if (sliding != nullptr) {
    parameters["sliding_attention"] = rope_parameters_json(*sliding);
    if (const std::string_view key = traits_of(model.family).sliding_theta_key; !key.empty())
      json[std::string(key)] = sliding->theta;
  }
  json["rope_parameters"] = std::move(parameters);
}

void add_latent(Json& json, const LatentConfig& latent) {
  json["q_lora_rank"] = latent.q_rank == 0 ? Json() : Json(latent.q_rank);
  json["kv_lora_rank"] = latent.kv_rank;
  json["qk_nope_head_dim"] = latent.nope_dim;
  json["qk_rope_head_dim"] = latent.rope_dim;
  json["v_head_dim"] = latent.value_dim;
  json["rope_interleave"] = latent.interleaved;
  // As transformers writes them.
  json["head_dim"] = latent.rope_dim;
  json["qk_head_dim"] = latent.query_dim();
}

void add_llama_like(Json& json, const ModelConfig& model) {
  const AttentionConfig& attention = model.layer(0).attention;
  json["hidden_size"] = model.hidden;
  const FamilyTraits& traits = traits_of(model.family);
  // Beside experts it stands in the source: no layer need be so wide.
  if (traits.experts.count == 0) json["intermediate_size"] = model.layer(0).mlp.ffn;
  json["num_hidden_layers"] = model.layer_count();
  json["num_attention_heads"] = attention.heads;
  json["num_key_value_heads"] = attention.kv_heads;
  if (attention.latent) {
    add_latent(json, *attention.latent);
  } else {
    json["head_dim"] = attention.head_dim;
  }
  if (traits.activation == Activation::kSwiGlu) json["hidden_act"] = "silu";
  json["max_position_embeddings"] = model.max_positions;
  json["rms_norm_eps"] = model.norm.eps;
  if (traits.attention_bias) json["attention_bias"] = attention.qkv_bias;
  if (traits.mlp_bias) json["mlp_bias"] = model.layer(0).mlp.bias;
  if (traits.windows == WindowRule::kEvery)
    json["sliding_window"] = attention.window == 0 ? Json() : Json(attention.window);
  traits.sliding_theta > 0 ? add_ropes_by_type(json, model) : add_rope(json, model);
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

Json model_keys_json(const ModelConfig& model) {
  Json json = Json::object();
  json["model_type"] = name_of(model.family);
  json["vocab_size"] = model.vocab_size;
  model.family == Family::kGpt2 ? add_gpt2(json, model) : add_llama_like(json, model);
  json["tie_word_embeddings"] = model.tied_embeddings;
  json["initializer_range"] = model.init_std;
  const FamilyTraits& traits = traits_of(model.family);
  if (says_token(model, "bos_token_id", model.bos_token, traits.bos_token)) {
    json["bos_token_id"] = token_json(model, "bos_token_id", model.bos_token);
  }
  if (says_token(model, "eos_token_id", model.end_token, traits.end_token)) {
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
  static constexpr std::string_view kShape[] = {"model_type",
                                                "hidden_size",
                                                "n_embd",
                                                "num_hidden_layers",
                                                "n_layer",
                                                "num_attention_heads",
                                                "n_head",
                                                "num_key_value_heads",
                                                "q_lora_rank",
                                                "kv_lora_rank",
                                                "qk_nope_head_dim",
                                                "qk_rope_head_dim",
                                                "v_head_dim",
                                                "head_dim",
                                                "intermediate_size",
                                                "n_inner",
                                                "vocab_size",
                                                "n_positions",
                                                "tie_word_embeddings",
                                                "attention_bias",
                                                "mlp_bias",
                                                "qkv_bias",
                                                "num_experts",
                                                "num_local_experts",
                                                "n_routed_experts",
                                                "n_shared_experts",
                                                "first_k_dense_replace",
                                                "use_qk_norm",
                                                "moe_intermediate_size",
                                                "shared_expert_intermediate_size",
                                                "decoder_sparse_step",
                                                "mlp_only_layers"};
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
  Json json = Json::object();
  json["architectures"] = Json::Array{Json(traits_of(model.family).architecture)};
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
