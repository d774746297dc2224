#pragma once
// What a family is: one row of a table. Its keys stand in model_keys.cc; what they have in common
// is read by model_parse.cc.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/model_config.h"

namespace trireme {

/// Which layers see a window.
enum class WindowRule : std::uint8_t {
  kNone,
  kEvery,      ///< every layer, of `sliding_window`
  kAsked,      ///< likewise; where use_sliding_window says so
  kListed,     ///< by layer_types; without that every layer
  kLast,       ///< by layer_types, else from max_window_layers on; where use_sliding_window says so
  kUnrotated,  ///< by layer_types, else those without RoPE; where use_sliding_window says so
  kPattern,    ///< by layer_types, else all but every so-manieth
  kFirst,      ///< by layer_types, else each second below max_window_layers, the first among them;
               ///< where use_sliding_window says so
};

/// What transformers 5 takes of experts where keys are missing.
struct ExpertTraits {
  std::int64_t count = 0;  ///< 0: a family without experts
  std::int64_t chosen = 0;
  std::int64_t ffn = 0;     ///< 0: intermediate_size is theirs
  std::int64_t shared = 0;  ///< columns of the shared expert, which has a gate; 0: none
  double aux_coefficient = 0.001;
  bool normalized = false;
  /// DeepSeek-V3's: sigmoid scores, a bias of the choice, groups, shared experts without a gate,
  /// layers without experts in front.
  bool sigmoid = false;
  std::int64_t groups = 1, groups_chosen = 1;
  double scale = 1;
  std::int64_t shared_count = 0;  ///< each as wide as an expert
  std::int64_t dense_first = 0;
  /// gpt-oss's: ExpertsConfig::biased; of a clamped unit.
  bool biased = false;
  double swiglu_alpha = 0, swiglu_limit = 0;
};

struct FamilyTraits {
  std::string_view model_type, architecture;  ///< architecture: transformers' class
  // What transformers 5 takes where keys are missing.
  std::int64_t vocab_size = 32000, hidden = 4096, ffn = 11008, layers = 32, heads = 32;
  std::int64_t kv_heads = 0;  ///< 0: as many as heads
  std::int64_t head_dim = 0;  ///< 0: hidden / heads
  std::int64_t positions = 2048;
  double norm_eps = 1e-6;
  bool tied = false;
  double rope_theta = 10000;
  std::int64_t bos_token = -1, end_token = -1;  ///< -1: none
  std::int64_t window = 4096;
  std::int64_t window_pattern = 0;  ///< of WindowRule::kPattern: every so-manieth sees all
  // What its layers have.
  bool qkv_bias = false;           ///< unless a key of that name says otherwise
  bool attention_bias = false;     ///< where a key of that name says so, of all four projections
  bool attention_biased = false;   ///< what that key says where it is missing
  bool attention_bias_out = true;  ///< of the last of them too
  bool mlp_bias = false;           ///< likewise
  QkNorm qk_norm = QkNorm::kNone;
  NormPlace norm_place = NormPlace::kBefore;
  float norm_offset = 0;
  Activation activation = Activation::kSwiGlu;
  WindowRule windows = WindowRule::kNone;
  bool query_scaling = false;  ///< RopeConfig::query_beta
  double rotated_part = 0;     ///< RopeConfig::part where partial_rotary_factor is a key
  double sliding_theta = 0;    ///< > 0: layers with a window have a RoPE of their own, of this base
  std::string_view sliding_theta_key = "";  ///< of the model, for that base; "": none
  bool scaled_embedding = false;            ///< by sqrt(hidden)
  bool sinks = false;                       ///< AttentionConfig::sinks
  /// rope_parameters of a file that has neither these nor rope_scaling, in JSON; "": none.
  std::string_view default_rope = "";
  ExpertTraits experts = {};
  std::optional<LatentConfig> latent = {};  ///< none: heads from products of the input
};

const FamilyTraits& traits_of(Family family);

/// The model_types of this version.
std::vector<std::string> family_names();
/// From a model_type; nothing where the family is not in this version.
std::optional<Family> family_of(std::string_view model_type);
/// Whether a model_type is one that later versions will have.
bool is_future_family(std::string_view model_type);

}  // namespace trireme
