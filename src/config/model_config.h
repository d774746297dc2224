#pragma once
// The architecture of a model, free of its family: what the model code reads. Made from the keys of
// a Hugging Face config.json; defaults are those of transformers for the family.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "config/param_group.h"

namespace trireme {

enum class Family : std::uint8_t {
  kLlama,
  kMistral,
  kMinistral,
  kMinistral3,
  kQwen2,
  kQwen3,
  kSmolLm3,
  kOlmo2,
  kOlmo3,
  kGemma3,
  kQwen2Moe,
  kQwen3Moe,
  kMixtral,
  kOlmoe,
  kGlm4Moe,
  kDeepseekV3,
  kGptOss,
  kGpt2
};
enum class NormKind : std::uint8_t { kRms, kLayer };
/// Where a branch of a layer has its norms.
enum class NormPlace : std::uint8_t {
  kBefore,  ///< s + f(norm(s))
  kAfter,   ///< s + norm(f(s)): OLMo 2
  kBoth,    ///< s + norm(f(norm(s))): Gemma
};
/// RMS norms of q and k before RoPE.
enum class QkNorm : std::uint8_t {
  kNone,
  kHeads,       ///< of each head by itself, with one weight for all
  kProjection,  ///< of all heads together: OLMo 2
};
enum class Activation : std::uint8_t {
  kSwiGlu,    ///< silu(gate) * up, two projections
  kGeGlu,     ///< gelu(gate) * up, gelu as below
  kGeluTanh,  ///< 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
};
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
  /// yarn: q also times 1 + query_beta ln(1 + floor(position / original_max_positions)).
  double query_beta = 0;
  double part = 1;  ///< of a head's dims: the first so many rotate, rounded down
  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

struct NormConfig {
  NormKind kind = NormKind::kRms;
  double eps = 1e-6;
  float weight_offset = 0;  ///< added to the weights: 1 where those are stored around 0
  friend bool operator==(const NormConfig&, const NormConfig&) = default;
};

/// Latent attention (DeepSeek-V2, arXiv 2405.04434): queries, keys and values are products of short
/// rows, which have norms of their own (kernels/latent_heads).
struct LatentConfig {
  std::int64_t q_rank = 0;  ///< 0: queries are a product of the layer's input
  std::int64_t kv_rank = 0;
  std::int64_t nope_dim = 0, rope_dim = 0, value_dim = 0;  ///< of a head
  bool interleaved = true;                                 ///< pairs that rotate stand side by side
  double norm_eps = 1e-6;

  [[nodiscard]] std::int64_t query_dim() const { return nope_dim + rope_dim; }
  [[nodiscard]] std::int64_t key_value_dim() const { return nope_dim + value_dim; }
  /// Of what a token's first products make, and of what a cache keeps of it.
  [[nodiscard]] std::int64_t down_size() const { return q_rank + cached_size(); }
  [[nodiscard]] std::int64_t cached_size() const { return kv_rank + rope_dim; }
  friend bool operator==(const LatentConfig&, const LatentConfig&) = default;
};

struct AttentionConfig {
  /// With latents head_dim is the wider of keys and values: queries and keys of fewer dims than
  /// values have zeros behind them.
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::optional<RopeConfig> rope;  ///< none: q and k as they are
  std::int64_t window = 0;  ///< positions that a query sees, its own among them; 0: all before it
  bool qkv_bias = false, out_bias = false;
  bool sinks = false;  ///< each head has a score without a key (attention_sinks)
  QkNorm qk_norm = QkNorm::kNone;
  double score_scale = 0;  ///< of q k; 0: head_dim^-1/2
  std::optional<LatentConfig> latent = {};

  /// With RoPE.
  [[nodiscard]] std::int64_t rotated_dims() const {
    if (latent) return latent->rope_dim;
    return static_cast<std::int64_t>(static_cast<double>(head_dim) * rope->part);
  }
  /// Columns that the layer's last product reads.
  [[nodiscard]] std::int64_t out_size() const { return heads * value_dim(); }
  /// Columns that the layer's first product makes: of this rank's heads, or of the latents.
  [[nodiscard]] std::int64_t in_size() const { return latent ? latent->down_size() : qkv_size(); }
  /// Products with keys and values for each pair of tokens, halved.
  [[nodiscard]] std::int64_t pair_size() const {
    return latent ? heads * (latent->query_dim() + latent->value_dim) / 2 : q_size();
  }
  [[nodiscard]] std::int64_t q_size() const { return heads * head_dim; }
  [[nodiscard]] std::int64_t k_size() const { return kv_heads * head_dim; }
  [[nodiscard]] std::int64_t v_size() const { return kv_heads * value_dim(); }
  [[nodiscard]] std::int64_t kv_size() const { return k_size() + v_size(); }
  [[nodiscard]] std::int64_t qkv_size() const { return q_size() + kv_size(); }
  /// Of a head of v, and of what attention makes of it.
  [[nodiscard]] std::int64_t value_dim() const { return latent ? latent->value_dim : head_dim; }
  /// Positions of a sequence of `tokens` that the last of them sees.
  [[nodiscard]] std::int64_t seen(std::int64_t tokens) const {
    return window == 0 ? tokens : std::min(tokens, window);
  }
  friend bool operator==(const AttentionConfig&, const AttentionConfig&) = default;
};

/// Experts of which a token has the `chosen` best (kernels/router). Each is gated (MlpConfig), F
/// columns wide.
struct ExpertsConfig {
  std::int64_t count = 0, chosen = 0, ffn = 0;
  bool sigmoid = false;     ///< scores; else softmax
  bool normalized = false;  ///< weights of a token are divided by their sum
  std::int64_t groups = 1, groups_chosen = 1;
  double scale = 1;          ///< of the weights
  bool has_bias = false;     ///< e_score_correction_bias: of the choice alone
  bool shared_gate = false;  ///< the layer's MLP, shared by all tokens, by sigmoid(x wg)
  bool biased = false;       ///< the router and each product of an expert
  /// With biases: of the clamped unit (kernels/expert_rows) that stands for the MLP's activation.
  double swiglu_alpha = 0, swiglu_limit = 0;
  friend bool operator==(const ExpertsConfig&, const ExpertsConfig&) = default;
};

struct MlpConfig {
  std::int64_t ffn = 0;  ///< 0: none, beside experts
  Activation activation = Activation::kSwiGlu;
  bool bias = false;  ///< on every projection

  /// A gate and what it lets pass.
  [[nodiscard]] bool gated() const { return activation != Activation::kGeluTanh; }
  [[nodiscard]] std::int64_t up_size() const { return gated() ? 2 * ffn : ffn; }
  friend bool operator==(const MlpConfig&, const MlpConfig&) = default;
};

/// Matrices of low rank beside linear products whose own weights stand still (LoRA, Hu et al.
/// 2021), as peft has them:
///   y = x W^T + scale x A^T B^T           A [rank, in], B [out, rank]
/// With magnitudes (DoRA, Liu et al. 2024) each row of W + scale B A has the length m of its own:
///   y = m / |W + scale B A| (x W^T + scale x A^T B^T)
struct AdapterConfig {
  std::int64_t rank = 0;
  double scale = 1;
  bool magnitudes = false;
  /// Ends of modules' names; empty: every product of the layers but experts', which one with
  /// "experts." names.
  std::vector<std::string> targets;
  double dropout = 0;             ///< in training, the share of x that A reads as 0
  std::uint64_t dropout_key = 0;  ///< of its choice

  /// `module`: "model.layers.0.self_attn.q_proj".
  [[nodiscard]] bool adapts(std::string_view module) const;
  friend bool operator==(const AdapterConfig&, const AdapterConfig&) = default;
};

/// Of each product of a layer, the sum of the ranks of the adapters beside it (config/adapters.h).
struct AdapterRanks {
  std::int64_t attention_in = 0, q_up = 0, kv_up = 0, attention_out = 0, mlp_in = 0, mlp_out = 0;
  std::int64_t experts_in = 0, experts_out = 0;  ///< of each expert
  friend bool operator==(const AdapterRanks&, const AdapterRanks&) = default;
};

/// One layer: its norms, and the two branches of its residual stream.
struct LayerConfig {
  NormConfig norm;  ///< of each of its norms
  NormPlace norm_place = NormPlace::kBefore;
  AttentionConfig attention;
  MlpConfig mlp;                         ///< beside experts: the shared one
  std::optional<ExpertsConfig> experts;  ///< in the MLP's branch
  AdapterRanks adapters;
  /// In training (ModelConfig::dropout_key): of the probabilities of attention, and of what each
  /// branch adds to the stream.
  double attention_dropout = 0, residual_dropout = 0;
  [[nodiscard]] bool norm_before() const { return norm_place != NormPlace::kAfter; }
  [[nodiscard]] bool norm_after() const { return norm_place != NormPlace::kBefore; }
  friend bool operator==(const LayerConfig&, const LayerConfig&) = default;
};

struct ModelConfig {
  Family family = Family::kLlama;
  std::vector<LayerConfig> layers;
  std::int64_t hidden = 0, vocab_size = 0, max_positions = 0;
  NormConfig norm;                 ///< behind the layers
  bool learned_positions = false;  ///< added to the embedding
  bool tied_embeddings = false;    ///< the head is the embedding
  double embedding_scale = 1;      ///< of the rows that are looked up, rounded to their type
  double init_std = 0.02;
  double aux_coefficient = 0;  ///< router_aux_loss_coef
  bool aux_loss = false;       ///< output_router_logits: transformers adds it to the loss
  std::int64_t bos_token = -1, end_token = -1;  ///< -1: none
  /// Of a run that trains nothing else (RunConfig::Lora).
  std::optional<AdapterConfig> adapters = {};
  std::int64_t head_adapter_rank = 0;  ///< as LayerConfig::adapters; 0 where the head is tied
  /// In training, of where the residual stream begins; the choice of this and the layers' dropout.
  double embedding_dropout = 0;
  std::uint64_t dropout_key = 0;

  ParamGroups groups = {};  ///< of a run's optimizer: what it declares of the parameters

  /// The keys under the family's names, defaults (but token ids) written out; all are kept.
  Json source;

  [[nodiscard]] std::int64_t layer_count() const { return std::ssize(layers); }
  [[nodiscard]] const LayerConfig& layer(std::int64_t index) const {
    return layers[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] bool has_experts() const {
    return std::any_of(layers.begin(), layers.end(),
                       [](const LayerConfig& layer) { return layer.experts.has_value(); });
  }
  /// Beside that of adapters.
  [[nodiscard]] bool has_dropout() const {
    return embedding_dropout > 0 ||
           std::any_of(layers.begin(), layers.end(), [](const LayerConfig& layer) {
             return layer.attention_dropout > 0 || layer.residual_dropout > 0;
           });
  }
  /// Whether training tells tokens by their numbers (MicroBatch::numbers).
  [[nodiscard]] bool numbers_tokens() const {
    return has_dropout() || (adapters && adapters->dropout > 0);
  }
  /// Of the experts' choice.
  [[nodiscard]] bool has_router_bias() const {
    return std::any_of(layers.begin(), layers.end(), [](const LayerConfig& layer) {
      return layer.experts && layer.experts->has_bias;
    });
  }
  /// Of layers, stored [in, out] as GPT-2's Conv1D, else [out, in].
  [[nodiscard]] bool weights_in_out() const { return family == Family::kGpt2; }
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

std::string_view name_of(Family family);  ///< the model_type: "llama", "qwen2", ...

}  // namespace trireme
