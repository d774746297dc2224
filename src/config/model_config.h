#pragma once
// The architecture of a model, free of its family: what the model code reads. Made from the keys of
// a Hugging Face config.json; defaults are those of transformers for the family.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace trireme {

enum class Family : std::uint8_t { kLlama, kMistral, kQwen2, kQwen3, kGpt2 };
enum class NormKind : std::uint8_t { kRms, kLayer };
enum class Activation : std::uint8_t {
  kSwiGlu,    ///< silu(gate) * up, two projections
  kGeluTanh,  ///< 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
};
enum class PositionKind : std::uint8_t { kRope, kLearned };
enum class RopeKind : std::uint8_t { kDefault, kLinear, kLlama3, kYarn };

/// Rotary embedding. Formulas: transformers' modeling_rope_utils.
struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000;
  double factor = 1;                        ///< linear, llama3, yarn
  double low_freq_factor = 1;               ///< llama3
  double high_freq_factor = 4;              ///< llama3
  std::int64_t original_max_positions = 0;  ///< llama3, yarn
  double beta_fast = 32, beta_slow = 1;     ///< yarn
  double attention_factor = 0;  ///< yarn; 0 = derived from factor, mscale and mscale_all_dim
  double mscale = 0, mscale_all_dim = 0;  ///< yarn
  bool truncate = true;                   ///< yarn: whole correction dims
  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

struct ModelConfig {
  Family family = Family::kLlama;
  std::int64_t layers = 0, hidden = 0, ffn = 0;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t vocab_size = 0, max_positions = 0;
  NormKind norm = NormKind::kRms;
  double norm_eps = 1e-6;
  Activation activation = Activation::kSwiGlu;
  PositionKind position = PositionKind::kRope;
  RopeConfig rope;
  bool qkv_bias = false;  ///< on q, k and v
  bool attention_out_bias = false;
  bool mlp_bias = false;         ///< on every projection of the MLP
  bool qk_norm = false;          ///< RMS norm of each q and k head before RoPE
  bool tied_embeddings = false;  ///< the head is the embedding
  /// Positions that a query sees, its own among them; 0: all before it.
  std::int64_t sliding_window = 0;
  double init_std = 0.02;
  std::int64_t bos_token = -1, end_token = -1;  ///< -1: none

  /// The keys under the family's own names, every default written out (but token ids that nobody
  /// gave), keys without effect kept.
  Json source;

  [[nodiscard]] std::int64_t q_size() const { return heads * head_dim; }
  [[nodiscard]] std::int64_t kv_size() const { return kv_heads * head_dim; }
  /// Stored [in, out] as GPT-2's Conv1D, else [out, in].
  [[nodiscard]] bool weights_in_out() const { return family == Family::kGpt2; }
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

std::string_view name_of(Family family);  ///< the model_type: "llama", "qwen2", ...

}  // namespace trireme
