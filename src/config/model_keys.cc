#include "config/model_keys.h"

#include <algorithm>
#include <span>
#include <vector>

#include "base/nearest_word.h"
#include "config/aliases.h"
#include "config/problem.h"

namespace trireme {

namespace {

using enum KeyUse;

constexpr ModelKey kCommon[] = {
    {"model_type", kRead},
    {"vocab_size", kRead},
    {"initializer_range", kRead},
    {"tie_word_embeddings", kRead},
    {"bos_token_id", kRead},
    {"eos_token_id", kRead},
    {"add_cross_attention", kFixed, "[false]"},
    {"attn_logit_softcapping", kFixed, "[]"},
    {"final_logit_softcapping", kFixed, "[]"},
    {"is_encoder_decoder", kFixed, "[false]"},
    {"pruned_heads", kFixed, "[{}]"},
    {"quantization_config", kFixed, "[]", "null, beside weights in fp32 or bf16"},
    {"tie_encoder_decoder", kFixed, "[false]"},
    // What a file has beside the architecture: bookkeeping, inference, generation, labels.
    {"_attn_implementation", kPass},
    {"_attn_implementation_autoset", kPass},
    {"_name_or_path", kPass},
    {"architectures", kPass},
    {"attn_implementation", kPass},
    {"bad_words_ids", kPass},
    {"begin_suppress_tokens", kPass},
    {"chunk_size_feed_forward", kPass},
    {"cross_attention_hidden_size", kPass},
    {"decoder_start_token_id", kPass},
    {"diversity_penalty", kPass},
    {"do_sample", kPass},
    {"dtype", kPass},
    {"early_stopping", kPass},
    {"encoder_no_repeat_ngram_size", kPass},
    {"exponential_decay_length_penalty", kPass},
    {"finetuning_task", kPass},
    {"forced_bos_token_id", kPass},
    {"forced_eos_token_id", kPass},
    {"gradient_checkpointing", kPass},
    {"id2label", kPass},
    {"is_decoder", kPass},
    {"label2id", kPass},
    {"length_penalty", kPass},
    {"max_length", kPass},
    {"min_length", kPass},
    {"no_repeat_ngram_size", kPass},
    {"num_beam_groups", kPass},
    {"num_beams", kPass},
    {"num_labels", kPass},
    {"num_return_sequences", kPass},
    {"output_attentions", kPass},
    {"output_hidden_states", kPass},
    {"output_scores", kPass},
    {"pad_token_id", kPass},
    {"prefix", kPass},
    {"problem_type", kPass},
    {"remove_invalid_values", kPass},
    {"repetition_penalty", kPass},
    {"return_dict", kPass},
    {"return_dict_in_generate", kPass},
    {"sep_token_id", kPass},
    {"suppress_tokens", kPass},
    {"task_specific_params", kPass},
    {"temperature", kPass},
    {"tf_legacy_loss", kPass},
    {"tokenizer_class", kPass},
    {"top_k", kPass},
    {"top_p", kPass},
    {"torch_dtype", kPass},
    {"torchscript", kPass},
    {"transformers_version", kPass},
    {"typical_p", kPass},
    {"use_bfloat16", kPass},
    {"use_cache", kPass},
};

constexpr ModelKey kLlamaLike[] = {
    {"hidden_size", kRead},
    {"intermediate_size", kRead},
    {"num_hidden_layers", kRead},
    {"num_attention_heads", kRead},
    {"num_key_value_heads", kRead},
    {"head_dim", kRead},
    {"max_position_embeddings", kRead},
    {"rms_norm_eps", kRead},
    {"rope_theta", kRead},
    {"rope_scaling", kRead},
    {"rope_parameters", kRead},
    {"attention_dropout", kDropout},
};

constexpr ModelKey kWholeRotation[] = {{"partial_rotary_factor", kFixed, "[1]"}};

constexpr ModelKey kSilu[] = {{"hidden_act", kFixed, R"(["silu", "swish"])"}};

constexpr ModelKey kLlama[] = {
    {"attention_bias", kRead},
    {"mlp_bias", kRead},
    {"pretraining_tp", kFixed, "[1]"},
    {"rope_interleaved", kFixed, "[false]"},
};

constexpr ModelKey kMistral[] = {{"sliding_window", kRead}};

constexpr ModelKey kWindowsByType[] = {{"layer_types", kRead}, {"sliding_window", kRead}};

// Sliding windows come of these keys together: model_parse looks at them.
constexpr ModelKey kSliding[] = {
    {"layer_types", kRead},        {"max_window_layers", kRead},     {"sliding_window", kRead},
    {"use_sliding_window", kRead}, {"use_mrope", kFixed, "[false]"},
};

constexpr ModelKey kExperts[] = {
    {"num_experts_per_tok", kRead},
    {"output_router_logits", kRead},
    {"router_aux_loss_coef", kRead},
};

// What is fixed is of its class in other systems; transformers' own has no such key.
constexpr ModelKey kQwen3Moe[] = {
    {"sliding_window", kRead},         {"use_sliding_window", kRead},
    {"qkv_bias", kFixed, "[false]"},   {"shared_expert_intermediate_size", kFixed, "[0]"},
    {"use_qk_norm", kFixed, "[true]"}, {"max_window_layers", kPass},
};

constexpr ModelKey kQwen2Moe[] = {{"qkv_bias", kRead}, {"shared_expert_intermediate_size", kRead}};

constexpr ModelKey kQwenExperts[] = {
    {"decoder_sparse_step", kRead},   {"mlp_only_layers", kRead}, {"num_experts", kRead},
    {"moe_intermediate_size", kRead}, {"norm_topk_prob", kRead},
};

constexpr ModelKey kMixtral[] = {{"num_local_experts", kRead},
                                 {"router_jitter_noise", kFixed, "[0]"}};

// The first says more than the common table's. The last two stand beside keys that say the same.
constexpr ModelKey kGptOss[] = {
    {"quantization_config", kFixed, "[]",
     "null, beside weights in bf16. transformers makes those of MXFP4: load the model with "
     "quantization_config=Mxfp4Config(dequantize=True) and save it by save_pretrained"},
    {"layer_types", kRead},
    {"num_local_experts", kRead},
    {"sliding_window", kRead},
    {"swiglu_alpha", kRead},
    {"swiglu_limit", kRead},
    {"experts_per_token", kPass},
    {"initial_context_length", kPass},
};

constexpr ModelKey kOlmoe[] = {
    {"num_experts", kRead}, {"norm_topk_prob", kRead}, {"clip_qkv", kFixed, "[]"}};

// Of experts scored by sigmoid. output_router_logits: transformers adds no loss for it. The last:
// heads that predict tokens further on, which no layer of the model reads.
constexpr ModelKey kRouted[] = {
    {"first_k_dense_replace", kRead},
    {"moe_intermediate_size", kRead},
    {"n_group", kRead},
    {"n_routed_experts", kRead},
    {"n_shared_experts", kRead},
    {"norm_topk_prob", kRead},
    {"num_experts_per_tok", kRead},
    {"routed_scaling_factor", kRead},
    {"topk_group", kRead},
    {"output_router_logits", kPass},
    {"num_nextn_predict_layers", kPass},
};

constexpr ModelKey kGlm4Moe[] = {{"partial_rotary_factor", kRead}, {"use_qk_norm", kRead}};

// head_dim and qk_head_dim follow from the others. Of DeepSeek's own class: what is fixed says what
// the family does, what is passed is of its losses and of ranks.
constexpr ModelKey kDeepseekV3[] = {
    {"kv_lora_rank", kRead},
    {"q_lora_rank", kRead},
    {"qk_head_dim", kRead},
    {"qk_nope_head_dim", kRead},
    {"qk_rope_head_dim", kRead},
    {"rope_interleave", kRead},
    {"v_head_dim", kRead},
    {"moe_layer_freq", kFixed, "[1]"},
    {"scoring_func", kFixed, R"(["sigmoid"])"},
    {"topk_method", kFixed, R"(["noaux_tc"])"},
    {"auto_map", kPass},
    {"aux_loss_alpha", kPass},
    {"ep_size", kPass},
    {"pretraining_tp", kPass},
    {"seq_aux", kPass},
};

// As the Qwens' but for the layers: model_parse looks at them.
constexpr ModelKey kSmolLm3[] = {
    {"attention_bias", kRead},         {"mlp_bias", kRead},          {"no_rope_layers", kRead},
    {"no_rope_layer_interval", kRead}, {"layer_types", kRead},       {"sliding_window", kRead},
    {"use_sliding_window", kRead},     {"max_window_layers", kPass}, {"pretraining_tp", kPass},
};

constexpr ModelKey kAttentionBias[] = {{"attention_bias", kRead}};

// _sliding_window_pattern is written by transformers 5, beside the layer_types that it has become.
constexpr ModelKey kGemma3[] = {
    {"attention_bias", kRead},
    {"hidden_activation", kFixed, R"(["gelu_pytorch_tanh"])"},
    {"layer_types", kRead},
    {"query_pre_attn_scalar", kRead},
    {"rope_local_base_freq", kRead},
    {"sliding_window", kRead},
    {"sliding_window_pattern", kRead},
    {"use_bidirectional_attention", kFixed, "[false]"},
    {"_sliding_window_pattern", kPass},
    {"cache_implementation", kPass},
    {"hidden_act", kPass},
};

constexpr ModelKey kGpt2[] = {
    {"n_embd", kRead},
    {"n_head", kRead},
    {"n_inner", kRead},
    {"n_layer", kRead},
    {"n_positions", kRead},
    {"layer_norm_epsilon", kRead},
    {"activation_function", kFixed, R"(["gelu_new", "gelu_pytorch_tanh"])"},
    {"scale_attn_by_inverse_layer_idx", kFixed, "[false]"},
    {"scale_attn_weights", kFixed, "[true]"},
    {"attn_pdrop", kDropout},
    {"embd_pdrop", kDropout},
    {"resid_pdrop", kDropout},
    {"n_ctx", kPass},
    {"reorder_and_upcast_attn", kPass},
    {"summary_activation", kPass},
    {"summary_first_dropout", kPass},
    {"summary_proj_to_labels", kPass},
    {"summary_type", kPass},
    {"summary_use_proj", kPass},
};

struct Renamed {
  std::string_view other, own;
};
constexpr Renamed kGpt2Names[] = {
    {"hidden_act", "activation_function"},      {"hidden_size", "n_embd"},
    {"intermediate_size", "n_inner"},           {"layer_norm_eps", "layer_norm_epsilon"},
    {"max_position_embeddings", "n_positions"}, {"num_attention_heads", "n_head"},
    {"num_hidden_layers", "n_layer"},
};
// transformers 5 writes qwen3_moe's under the other name.
constexpr Renamed kExpertNames[] = {{"num_local_experts", "num_experts"}};
constexpr Renamed kRoutedNames[] = {{"num_experts", "n_routed_experts"},
                                    {"num_local_experts", "n_routed_experts"},
                                    {"num_mtp_layers", "num_nextn_predict_layers"}};
constexpr Renamed kMixtralNames[] = {{"num_experts", "num_local_experts"}};

std::span<const Renamed> other_names(Family family) {
  switch (family) {
    case Family::kGpt2:
      return kGpt2Names;
    case Family::kQwen2Moe:
    case Family::kQwen3Moe:
    case Family::kOlmoe:
      return kExpertNames;
    case Family::kMixtral:
    case Family::kGptOss:
      return kMixtralNames;
    case Family::kGlm4Moe:
    case Family::kDeepseekV3:
      return kRoutedNames;
    default:
      return {};
  }
}

std::vector<std::span<const ModelKey>> tables(Family family) {
  switch (family) {
    case Family::kLlama:
      return {kCommon, kLlamaLike, kWholeRotation, kSilu, kLlama};
    case Family::kMistral:
    case Family::kMinistral3:
      return {kCommon, kLlamaLike, kWholeRotation, kSilu, kMistral};
    case Family::kMinistral:
      return {kCommon, kLlamaLike, kWholeRotation, kSilu, kWindowsByType};
    case Family::kQwen2:
      return {kCommon, kLlamaLike, kWholeRotation, kSilu, kSliding};
    case Family::kQwen3:
      return {kCommon, kLlamaLike, kWholeRotation, kSilu, kSliding, kAttentionBias};
    case Family::kSmolLm3:
      return {kCommon, kLlamaLike, kWholeRotation, kSilu, kSmolLm3};
    case Family::kOlmo2:
      return {kCommon, kLlamaLike, kWholeRotation, kSilu, kAttentionBias};
    case Family::kOlmo3:
      return {kCommon, kLlamaLike, kWholeRotation, kSilu, kAttentionBias, kWindowsByType};
    case Family::kGemma3:
      return {kCommon, kLlamaLike, kWholeRotation, kGemma3};
    case Family::kQwen2Moe:
      return {kCommon,  kLlamaLike, kWholeRotation, kSilu,
              kSliding, kExperts,   kQwenExperts,   kQwen2Moe};
    case Family::kQwen3Moe:
      return {kCommon,        kLlamaLike, kWholeRotation, kSilu,
              kAttentionBias, kExperts,   kQwenExperts,   kQwen3Moe};
    case Family::kMixtral:
      return {kCommon, kLlamaLike, kWholeRotation, kSilu, kMistral, kExperts, kMixtral};
    case Family::kOlmoe:
      return {kCommon, kLlamaLike, kWholeRotation, kSilu, kAttentionBias, kExperts, kOlmoe};
    case Family::kGlm4Moe:
      return {kCommon, kLlamaLike, kSilu, kAttentionBias, kRouted, kGlm4Moe};
    case Family::kDeepseekV3:
      return {kCommon, kLlamaLike, kWholeRotation, kSilu, kAttentionBias, kRouted, kDeepseekV3};
    case Family::kGptOss:
      return {kGptOss, kCommon, kLlamaLike, kWholeRotation, kSilu, kAttentionBias, kExperts};
    case Family::kGpt2:
      return {kCommon, kGpt2};
  }
  return {};
}

}  // namespace

const ModelKey* find_model_key(Family family, std::string_view name) {
  for (const auto table : tables(family)) {
    for (const ModelKey& key : table) {
      if (key.name == name) return &key;
    }
  }
  return nullptr;
}

std::string_view own_name(Family family, std::string_view name) {
  for (const auto& [other, own] : other_names(family)) {
    if (other == name) return own;
  }
  return name;
}

std::string nearest_model_key(Family family, std::string_view name) {
  if (const auto alias = key_aliases().find(name); alias != key_aliases().end()) {
    constexpr std::string_view kPrefix = "model.";
    const std::string_view path = alias->second;
    const std::string_view own =
        path.starts_with(kPrefix) ? own_name(family, path.substr(kPrefix.size())) : "";
    if (find_model_key(family, own) != nullptr) return std::string(own);
  }
  std::vector<std::string> names;
  for (const auto table : tables(family)) {
    for (const ModelKey& key : table) {
      if (key.use != kPass) names.emplace_back(key.name);
    }
  }
  return nearest_word(name, names).value_or("");
}

}  // namespace trireme
