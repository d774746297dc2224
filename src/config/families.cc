#include "config/families.h"

#include <algorithm>
#include <iterator>

namespace trireme {

namespace {

/// In the order of Family.
constexpr FamilyTraits kFamilies[] = {
    {.model_type = "llama",
     .architecture = "LlamaForCausalLM",
     .bos_token = 1,
     .end_token = 2,
     .attention_bias = true,
     .mlp_bias = true},
    {.model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .ffn = 14336,
     .kv_heads = 8,
     .positions = 131072,
     .bos_token = 1,
     .end_token = 2,
     .windows = WindowRule::kEvery},
    {.model_type = "ministral",
     .architecture = "MinistralForCausalLM",
     .ffn = 14336,
     .kv_heads = 8,
     .positions = 131072,
     .bos_token = 1,
     .end_token = 2,
     .windows = WindowRule::kListed},
    {.model_type = "ministral3",
     .architecture = "Ministral3ForCausalLM",
     .vocab_size = 131072,
     .ffn = 14336,
     .layers = 34,
     .kv_heads = 8,
     .head_dim = 128,
     .positions = 262144,
     .norm_eps = 1e-5,
     .rope_theta = 1e6,
     .bos_token = 1,
     .end_token = 2,
     .window = 0,
     .windows = WindowRule::kEvery,
     .query_scaling = true},
    {.model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .vocab_size = 151936,
     .ffn = 22016,
     .kv_heads = 32,
     .positions = 32768,
     .qkv_bias = true,
     .windows = WindowRule::kLast},
    {.model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .vocab_size = 151936,
     .ffn = 22016,
     .kv_heads = 32,
     .head_dim = 128,
     .positions = 32768,
     .attention_bias = true,
     .qk_norm = QkNorm::kHeads,
     .windows = WindowRule::kLast},
    {.model_type = "smollm3",
     .architecture = "SmolLM3ForCausalLM",
     .vocab_size = 128256,
     .hidden = 2048,
     .layers = 36,
     .heads = 16,
     .kv_heads = 4,
     .positions = 32768,
     .tied = true,
     .rope_theta = 2e6,
     .bos_token = 128000,
     .end_token = 128001,
     .window = 0,
     .attention_bias = true,
     .mlp_bias = true,
     .windows = WindowRule::kUnrotated},
    {.model_type = "olmo2",
     .architecture = "Olmo2ForCausalLM",
     .vocab_size = 50304,
     .norm_eps = 1e-5,
     .end_token = 50279,
     .attention_bias = true,
     .qk_norm = QkNorm::kProjection,
     .norm_place = NormPlace::kAfter},
    {.model_type = "olmo3",
     .architecture = "Olmo3ForCausalLM",
     .vocab_size = 50304,
     .norm_eps = 1e-5,
     .rope_theta = 5e5,
     .end_token = 50279,
     .window_pattern = 4,
     .attention_bias = true,
     .qk_norm = QkNorm::kProjection,
     .norm_place = NormPlace::kAfter,
     .windows = WindowRule::kPattern,
     .sliding_theta = 5e5},
    {.model_type = "gemma3_text",
     .architecture = "Gemma3ForCausalLM",
     .vocab_size = 262208,
     .hidden = 2304,
     .ffn = 9216,
     .layers = 26,
     .heads = 8,
     .kv_heads = 4,
     .head_dim = 256,
     .positions = 131072,
     .tied = true,
     .rope_theta = 1e6,
     .bos_token = 2,
     .end_token = 1,
     .window_pattern = 6,
     .attention_bias = true,
     .qk_norm = QkNorm::kHeads,
     .norm_place = NormPlace::kBoth,
     .norm_offset = 1,
     .activation = Activation::kGeGlu,
     .windows = WindowRule::kPattern,
     .sliding_theta = 1e4,
     .sliding_theta_key = "rope_local_base_freq",
     .scaled_embedding = true},
    {.model_type = "gpt2",
     .architecture = "GPT2LMHeadModel",
     .vocab_size = 50257,
     .hidden = 768,
     .layers = 12,
     .heads = 12,
     .positions = 1024,
     .norm_eps = 1e-5,
     .tied = true,
     .bos_token = 50256,
     .end_token = 50256,
     .activation = Activation::kGeluTanh},
};
static_assert(std::size(kFamilies) == static_cast<std::size_t>(Family::kGpt2) + 1);

}  // namespace

const FamilyTraits& traits_of(Family family) { return kFamilies[static_cast<std::size_t>(family)]; }

std::string_view name_of(Family family) { return traits_of(family).model_type; }

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const FamilyTraits& traits : kFamilies) names.emplace_back(traits.model_type);
  return names;
}

std::optional<Family> family_of(std::string_view model_type) {
  const auto* const found =
      std::find_if(std::begin(kFamilies), std::end(kFamilies),
                   [&](const FamilyTraits& traits) { return traits.model_type == model_type; });
  if (found == std::end(kFamilies)) return std::nullopt;
  return static_cast<Family>(found - std::begin(kFamilies));
}

bool is_future_family(std::string_view model_type) {
  static constexpr std::string_view kNames[] = {"gemma2",   "glm4",       "gpt_oss",   "phi3",
                                                "mixtral",  "qwen2_moe",  "qwen3_moe", "olmoe",
                                                "glm4_moe", "deepseek_v3"};
  return std::find(std::begin(kNames), std::end(kNames), model_type) != std::end(kNames);
}

}  // namespace trireme
