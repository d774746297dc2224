#include "config/megatron_model.h"

#include <algorithm>

#include "config/model_keys.h"

namespace trireme {

namespace {

constexpr std::int64_t kLayersMax = 4096;  // of any model

/// Of an argument that asks for what no family of this version has.
struct Refused {
  std::string_view name, what;
};
constexpr Refused kRefused[] = {
    {"--apply-residual-connection-post-layernorm", "residuals behind the norms"},
    {"--moe-input-jitter-eps", "noise in the router's input"},
    {"--mtp-num-layers", "prediction of several tokens"},
    {"--qk-l2-norm", "L2 norms of q and k"},
    {"--quick-geglu", "quick GEGLU"},
    {"--squared-relu", "squared ReLU"},
    {"--window-size", "attention in a window"},
};

/// "[0]*3+[1]*58", "([1,0]*2)": which layers have experts; nothing where it is no such list.
std::optional<std::vector<bool>> read_layer_list(std::string_view text) {
  std::vector<bool> layers;
  std::size_t at = 0;
  const auto here = [&](char c) {
    while (at < text.size() && (text[at] == ' ' || text[at] == '(' || text[at] == ')')) ++at;
    if (at == text.size() || text[at] != c) return false;
    ++at;
    return true;
  };
  do {
    if (!here('[')) return std::nullopt;
    std::vector<bool> part;
    do {
      const bool one = here('1');
      if (!one && !here('0')) return std::nullopt;
      part.push_back(one);
    } while (here(','));
    if (!here(']')) return std::nullopt;
    std::size_t times = 1;
    if (here('*')) {
      times = 0;
      for (; at < text.size() && text[at] >= '0' && text[at] <= '9' &&
             times < std::size_t{kLayersMax};
           ++at)
        times = 10 * times + static_cast<std::size_t>(text[at] - '0');
    }
    if (layers.size() + times * part.size() > std::size_t{kLayersMax}) return std::nullopt;
    for (; times > 0; --times) layers.insert(layers.end(), part.begin(), part.end());
  } while (here('+'));
  (void)here('\0');
  if (at != text.size()) return std::nullopt;
  return layers;
}

class MegatronModel {
 public:
  MegatronModel(const MegatronArguments& arguments, ConversionDraft& draft)
      : arguments_(arguments), draft_(draft) {}

  void convert() {
    if (!read_sizes()) return;
    read_traits();
    latent_ = arguments_.has("--multi-latent-attention");
    if (const auto count = arguments_.size("--num-experts")) read_experts(*count);
    const std::string missing = no_family();
    if (!missing.empty())
      return draft_.miss("model", fmt::format("no family of this version has {}", missing));
    Json model = Json::object();
    model["model_type"] = name_of(family_);
    add_vocabulary(model);
    add_sizes(model);
    family_ == Family::kGpt2 ? add_gpt2(model) : add_llama_like(model);
    if (experts_ > 0) add_experts(model);
    model["tie_word_embeddings"] = !arguments_.has("--untie-embeddings-and-output-weights");
    model["initializer_range"] = arguments_.real("--init-method-std").value_or(0.02);
    if (arguments_.has("--apply-layernorm-1p")) {
      draft_.remark(
          "--apply-layernorm-1p: norms are stored as 1 + w here, which trains the same, as norms "
          "have no weight decay; trained ones have to be changed");
    }
    draft_.set("model", std::move(model), "the arguments of the model");
  }

 private:
  /// False, and reported, where a size is not there.
  bool read_sizes() {
    std::string unknown;
    const auto need = [&](const char* name, std::int64_t& size) {
      if (const auto value = arguments_.size(name)) {
        size = *value;
      } else {
        unknown += (unknown.empty() ? "" : ", ") + std::string(name);
      }
    };
    need("--num-layers", layers_);
    need("--hidden-size", hidden_);
    need("--num-attention-heads", heads_);
    if (!unknown.empty()) {
      draft_.miss("model", unknown + " not known");
      return false;
    }
    kv_heads_ = heads_;
    if (arguments_.has("--group-query-attention")) {
      kv_heads_ = arguments_.size("--num-query-groups").value_or(1);
    } else if (arguments_.has("--num-query-groups")) {
      draft_.remark(
          "--num-query-groups has no effect without --group-query-attention, in "
          "Megatron-LM as here");
    }
    head_dim_ = arguments_.size("--kv-channels").value_or(hidden_ / heads_);
    swiglu_ = arguments_.has("--swiglu");
    // Megatron-LM's default of a gated MLP has about as many weights as 4 x hidden without gate.
    const std::int64_t otherwise = swiglu_ ? hidden_ * 8 / 3 / 64 * 64 : hidden_ * 4;
    ffn_ = arguments_.size("--ffn-hidden-size").value_or(otherwise);
    return true;
  }

  void read_traits() {
    const std::string position =
        arguments_.has("--use-rotary-position-embeddings")
            ? "rope"
            : arguments_.text("--position-embedding-type").value_or("learned_absolute");
    rotary_ = position == "rope";
    learned_ = position == "learned_absolute" && !arguments_.has("--no-position-embedding");
    const std::string norm = arguments_.text("--normalization").value_or("LayerNorm");
    rms_ = norm == "RMSNorm";
    layer_norm_ = norm == "LayerNorm";
    bias_ = !arguments_.has("--disable-bias-linear");
    qkv_bias_ = arguments_.has("--add-qkv-bias");
    qk_norm_ = arguments_.has("--qk-layernorm");
    family_ = learned_              ? Family::kGpt2
              : qk_norm_            ? Family::kQwen3
              : !bias_ && qkv_bias_ ? Family::kQwen2
                                    : Family::kLlama;
  }

  void read_experts(std::int64_t count) {
    experts_ = count;
    expert_ffn_ = arguments_.size("--moe-ffn-hidden-size").value_or(ffn_);
    shared_ffn_ = arguments_.size("--moe-shared-expert-intermediate-size").value_or(0);
    normalized_ = !arguments_.has("--moe-router-pre-softmax");
    family_ = shared_ffn_ > 0 ? Family::kQwen2Moe : qk_norm_ ? Family::kQwen3Moe : Family::kMixtral;
    sigmoid_ = arguments_.text("--moe-router-score-function").value_or("softmax") == "sigmoid";
    if (sigmoid_) family_ = latent_ ? Family::kDeepseekV3 : Family::kGlm4Moe;
    // Every so-manieth layer from the first on, or a list.
    const std::string every = arguments_.text("--moe-layer-freq").value_or("1");
    if (every.find_first_not_of("0123456789") != std::string::npos) {
      if (const auto list = read_layer_list(every)) with_experts_ = *list;
      return;
    }
    const std::int64_t step = arguments_.size("--moe-layer-freq").value_or(1);
    for (std::int64_t i = 0; i < std::min(layers_, kLayersMax); ++i)
      with_experts_.push_back(i % step == 0);
  }
  /// Layers without experts in front of all that have them; nothing where others are behind.
  [[nodiscard]] std::optional<std::int64_t> dense_in_front() const {
    const auto first = std::find(with_experts_.begin(), with_experts_.end(), true);
    if (std::find(first, with_experts_.end(), false) != with_experts_.end()) return std::nullopt;
    return first - with_experts_.begin();
  }

  /// What no family with experts has; "" where `family_` has all.
  [[nodiscard]] std::string no_family_of_experts() const {
    if (std::ssize(with_experts_) != layers_)
      return "a list of that form for its layers with experts (--moe-layer-freq)";
    if (sigmoid_) return no_family_of_sigmoid();
    for (const char* of_sigmoid :
         {"--moe-router-enable-expert-bias", "--moe-router-num-groups",
          "--moe-router-topk-scaling-factor", "--multi-latent-attention"}) {
      if (arguments_.has(of_sigmoid))
        return fmt::format("{} beside scores by softmax (--moe-router-score-function)", of_sigmoid);
    }
    const bool qwen2 = family_ == Family::kQwen2Moe, mixtral = family_ == Family::kMixtral;
    if (bias_ || qkv_bias_ != qwen2 || (qwen2 && qk_norm_) || !rotary_ || !rms_ || !swiglu_)
      return "experts beside these traits (mixtral: no biases; qwen3_moe: norms of q and k, no "
             "biases; qwen2_moe: biases of q, k and v, a shared expert; all: rotary, RMSNorm, "
             "SwiGLU)";
    if (arguments_.text("--moe-router-score-function").value_or("softmax") != "softmax")
      return "experts scored so (--moe-router-score-function)";
    if (qwen2 != arguments_.has("--moe-shared-expert-gate"))
      return "a shared expert without a gate, or a gate without it (--moe-shared-expert-gate)";
    if (mixtral && !normalized_)
      return "weights of experts that do not sum to 1 (--moe-router-pre-softmax) without norms of "
             "q and k";
    if (mixtral && std::count(with_experts_.begin(), with_experts_.end(), false) > 0)
      return "layers without experts (--moe-layer-freq) without norms of q and k";
    return "";
  }

  /// Likewise of those scored by sigmoid: glm4_moe, deepseek_v3.
  [[nodiscard]] std::string no_family_of_sigmoid() const {
    if (bias_ || (latent_ && qkv_bias_) || !rotary_ || !rms_ || !swiglu_)
      return "experts scored by sigmoid beside these traits (glm4_moe: no biases but of q, k and "
             "v; "
             "deepseek_v3: none; both: rotary, RMSNorm, SwiGLU)";
    if (latent_ && !qk_norm_)
      return "latents without norms (--multi-latent-attention without "
             "--qk-layernorm)";
    if (latent_ && kv_heads_ != heads_)
      return "latents with grouped heads (--group-query-attention)";
    if (arguments_.has("--moe-shared-expert-gate"))
      return "a gate of the shared expert beside scores by sigmoid (--moe-shared-expert-gate)";
    if (expert_ffn_ == 0 || shared_ffn_ % expert_ffn_ != 0)
      return "a shared expert that is not as wide as some experts together "
             "(--moe-shared-expert-intermediate-size)";
    if (!dense_in_front()) return "layers without experts behind others (--moe-layer-freq)";
    // Theirs are by the k / group_topk best of a group, ours by the two best.
    const std::int64_t best = groups_chosen(), chosen = experts_chosen();
    if (groups() > 1 && chosen != 2 * best)
      return "groups whose score is not that of their two best experts (--moe-router-topk is not "
             "twice --moe-router-group-topk)";
    return "";
  }
  [[nodiscard]] std::int64_t experts_chosen() const {
    return arguments_.size("--moe-router-topk").value_or(2);
  }
  [[nodiscard]] std::int64_t groups() const {
    return arguments_.size("--moe-router-num-groups").value_or(1);
  }
  [[nodiscard]] std::int64_t groups_chosen() const {
    return groups() == 1 ? 1 : arguments_.size("--moe-router-group-topk").value_or(1);
  }

  /// What no family has; "" where `family_` has all.
  std::string no_family() const {
    for (const auto& [name, what] : kRefused) {
      if (arguments_.has(name)) return fmt::format("{} ({})", what, name);
    }
    if (latent_ && !sigmoid_) return "latent attention without experts scored by sigmoid";
    if (arguments_.real("--rotary-percent").value_or(1) != 1 && family_ != Family::kGlm4Moe)
      return "rotary embedding of a part of each head (--rotary-percent)";
    if (!rotary_ && !learned_) return "positions of that kind (--position-embedding-type)";
    if (!rms_ && !layer_norm_) return "norms of that kind (--normalization)";
    if (experts_ > 0) return no_family_of_experts();
    const bool gpt2 = learned_ && layer_norm_ && !swiglu_ && bias_ && !qk_norm_ &&
                      kv_heads_ == heads_ && head_dim_ * heads_ == hidden_;
    const bool llama = rotary_ && rms_ && swiglu_ && !(qk_norm_ && (bias_ || qkv_bias_));
    if (gpt2 || llama) return "";
    std::string text =
        fmt::format("{} positions, {}, {}, {}{}{} together", rotary_ ? "rotary" : "learned",
                    rms_ ? "RMSNorm" : "LayerNorm", swiglu_ ? "SwiGLU" : "GELU",
                    bias_       ? "biases"
                    : qkv_bias_ ? "biases of q, k and v"
                                : "no biases",
                    qk_norm_ ? ", norms of q and k" : "",
                    learned_ && kv_heads_ != heads_ ? ", grouped heads" : "");
    return text + " (gpt2: learned, LayerNorm, GELU, biases; llama, qwen: rotary, RMSNorm, SwiGLU)";
  }

  void put(Json& model, std::string_view key, Json value) const {
    model[own_name(family_, key)] = std::move(value);
  }

  void add_vocabulary(Json& model) {
    if (const auto padded = arguments_.size("--padded-vocab-size")) {
      model["vocab_size"] = *padded;
      return;
    }
    auto size = arguments_.size("--vocab-size");
    const std::string tokenizer = megatron_tokenizer(arguments_);
    if (size && tokenizer == "NullTokenizer") size = *size + 1;
    if (!size && tokenizer == "GPT2BPETokenizer") size = 50257;
    if (!size) {
      draft_.unset(
          "model.vocab_size: the tokenizer's size is not among the arguments, and the family's "
          "default holds until it is set");
      return;
    }
    const std::int64_t tensor = draft_.integer("parallel.tensor").value_or(1);
    const std::int64_t divisor =
        arguments_.size("--make-vocab-size-divisible-by").value_or(128) * tensor;
    const std::int64_t padded = (*size + divisor - 1) / divisor * divisor;
    model["vocab_size"] = padded;
    if (padded == *size) return;
    draft_.remark(
        "model.vocab_size: {} padded to {} as Megatron-LM pads it; {} trains the same "
        "model without the rows that no token has",
        *size, padded, *size);
  }

  void add_sizes(Json& model) {
    put(model, "hidden_size", hidden_);
    put(model, "intermediate_size", ffn_);
    put(model, "num_hidden_layers", layers_);
    put(model, "num_attention_heads", heads_);
    auto positions = arguments_.size("--max-position-embeddings");
    if (!positions) positions = draft_.integer("data.sequence_length");
    if (positions) put(model, "max_position_embeddings", *positions);
  }

  [[nodiscard]] double norm_eps() const {
    const auto eps = arguments_.real("--norm-epsilon");
    return eps ? *eps : arguments_.real("--layernorm-epsilon").value_or(1e-5);
  }
  /// A rate that the model has. Megatron-LM drops a tenth where nothing is said.
  [[nodiscard]] double dropout(const char* name) {
    const double rate = arguments_.real(name).value_or(0.1);
    if (rate > 0)
      draft_.set("model_backend.dropout", true,
                 arguments_.has(name) ? name : fmt::format("{} (default)", name));
    return rate;
  }

  void add_gpt2(Json& model) {
    model["layer_norm_epsilon"] = norm_eps();
    model["attn_pdrop"] = dropout("--attention-dropout");
    model["embd_pdrop"] = model["resid_pdrop"] = dropout("--hidden-dropout");
  }

  void add_llama_like(Json& model) {
    model["num_key_value_heads"] = kv_heads_;
    if (!latent_ && (qk_norm_ || head_dim_ * heads_ != hidden_ || sigmoid_))
      model["head_dim"] = head_dim_;
    model["rms_norm_eps"] = norm_eps();
    latent_ ? add_latents(model) : add_rope(model);
    draft_.remark(
        "the weights of o_proj and down_proj are drawn with initializer_range, as transformers "
        "draws them; Megatron-LM divides theirs by the root of 2 x {} layers",
        layers_);
    if (family_ == Family::kLlama && bias_) model["attention_bias"] = model["mlp_bias"] = true;
    model["attention_dropout"] = dropout("--attention-dropout");
    if (const double rate = arguments_.real("--hidden-dropout").value_or(0.1); rate > 0) {
      draft_.remark("--hidden-dropout {}{}: {} has none", rate,
                    arguments_.has("--hidden-dropout") ? "" : " (Megatron-LM's default)",
                    name_of(family_));
    }
    if (arguments_.has("--rotary-interleaved") && !latent_) {
      draft_.remark(
          "--rotary-interleaved: pairs are a half of the head apart here, which is the same for "
          "weights drawn at random; trained ones have to be permuted");
    }
  }

  void add_experts(Json& model) {
    put(model, "num_experts", experts_);
    model["num_experts_per_tok"] = experts_chosen();
    if (family_ == Family::kMixtral) {
      model["intermediate_size"] = expert_ffn_;
      return;
    }
    model["moe_intermediate_size"] = expert_ffn_;
    if (sigmoid_) return add_sigmoid(model);
    model["norm_topk_prob"] = normalized_;
    if (shared_ffn_ > 0) model["shared_expert_intermediate_size"] = shared_ffn_;
    Json dense = Json::array();
    for (std::size_t i = 0; i < with_experts_.size(); ++i)
      if (!with_experts_[i]) dense.push_back(static_cast<std::int64_t>(i));
    if (!dense.as_array().empty()) model["mlp_only_layers"] = std::move(dense);
  }

  void add_sigmoid(Json& model) {
    model["norm_topk_prob"] = experts_chosen() > 1;  // as theirs
    model["routed_scaling_factor"] =
        arguments_.real("--moe-router-topk-scaling-factor").value_or(1);
    model["n_group"] = groups();
    model["topk_group"] = groups_chosen();
    model["n_shared_experts"] = shared_ffn_ / expert_ffn_;
    model["first_k_dense_replace"] = *dense_in_front();
    if (family_ != Family::kGlm4Moe) return;
    model["attention_bias"] = qkv_bias_;
    model["use_qk_norm"] = qk_norm_;
    model["partial_rotary_factor"] = arguments_.real("--rotary-percent").value_or(1);
  }

  /// Megatron-LM's defaults where they are not given; its rotary embedding of latents is YaRN's.
  void add_latents(Json& model) {
    const auto size = [&](const char* name, std::int64_t otherwise) {
      return arguments_.size(name).value_or(otherwise);
    };
    const auto rank = arguments_.size("--q-lora-rank");
    model["q_lora_rank"] = rank ? Json(*rank) : Json();
    model["kv_lora_rank"] = size("--kv-lora-rank", 32);
    model["qk_nope_head_dim"] = size("--qk-head-dim", 128);
    model["qk_rope_head_dim"] = size("--qk-pos-emb-head-dim", 64);
    model["v_head_dim"] = size("--v-head-dim", 128);
    const double factor = arguments_.real("--rotary-scaling-factor").value_or(1);
    if (arguments_.text("--rope-type").value_or("yarn") == "rope" || factor == 1)
      return add_rope(model);
    model["rope_theta"] = arguments_.real("--rotary-base").value_or(10000);
    Json scaling = Json::object();
    scaling["rope_type"] = "yarn";
    scaling["factor"] = factor;
    scaling["mscale"] = arguments_.real("--mscale").value_or(1);
    scaling["mscale_all_dim"] = arguments_.real("--mscale-all-dim").value_or(0);
    scaling["beta_fast"] = arguments_.real("--beta-fast").value_or(32);
    scaling["beta_slow"] = arguments_.real("--beta-slow").value_or(1);
    scaling["original_max_position_embeddings"] = size("--original-max-position-embeddings", 4096);
    model["rope_scaling"] = std::move(scaling);
  }

  void add_rope(Json& model) {
    model["rope_theta"] = arguments_.real("--rotary-base").value_or(10000);
    const auto factor = arguments_.size("--rotary-seq-len-interpolation-factor");
    if (arguments_.has("--use-rope-scaling")) {
      Json scaling = Json::object();
      scaling["rope_type"] = "llama3";
      scaling["factor"] = arguments_.real("--rope-scaling-factor").value_or(8);
      scaling["low_freq_factor"] = 1.0;
      scaling["high_freq_factor"] = 4.0;
      scaling["original_max_position_embeddings"] = 8192;
      model["rope_scaling"] = std::move(scaling);
    } else if (factor && *factor != 1) {
      Json scaling = Json::object();
      scaling["rope_type"] = "linear";
      scaling["factor"] = static_cast<double>(*factor);
      model["rope_scaling"] = std::move(scaling);
    }
  }

  const MegatronArguments& arguments_;
  ConversionDraft& draft_;
  std::int64_t layers_ = 0, hidden_ = 0, ffn_ = 0, heads_ = 0, kv_heads_ = 0, head_dim_ = 0;
  bool rotary_ = false, learned_ = false, rms_ = false, layer_norm_ = false, swiglu_ = false;
  bool bias_ = true, qkv_bias_ = false, qk_norm_ = false;
  Family family_ = Family::kLlama;
  std::int64_t experts_ = 0, expert_ffn_ = 0, shared_ffn_ = 0;
  std::vector<bool> with_experts_;  // of each layer
  bool normalized_ = true, sigmoid_ = false, latent_ = false;
};

}  // namespace

std::string megatron_tokenizer(const MegatronArguments& arguments) {
  return arguments.text("--tokenizer-type")
      .value_or(arguments.has("--merge-file") ? "GPT2BPETokenizer" : "");
}

void convert_megatron_model(const MegatronArguments& arguments, ConversionDraft& draft) {
  MegatronModel(arguments, draft).convert();
}

}  // namespace trireme
