#include "config/model_parse.h"

#include <algorithm>
#include <cmath>

#include "base/file.h"
#include "base/log.h"
#include "base/missing_path.h"
#include "config/experts_parse.h"
#include "config/json_numbers.h"
#include "config/key_reader.h"
#include "config/latent_parse.h"
#include "config/model_keys.h"
#include "config/rope_parse.h"
#include "config/value_names.h"

namespace trireme {

namespace {

// Limits far beyond any model, within which no product of two sizes and the layers leaves 64 bits.
constexpr KeyReader::Integers kLayers = {1, 4096};
constexpr KeyReader::Integers kWidth = {1, std::int64_t{1} << 20};
constexpr KeyReader::Integers kFfn = {1, std::int64_t{1} << 23};
constexpr KeyReader::Integers kHeads = {1, 1 << 16};
constexpr KeyReader::Integers kHeadDim = {1, 1 << 14};
constexpr KeyReader::Integers kVocabulary = {1, 1 << 24};
constexpr KeyReader::Integers kPositions = {1, std::int64_t{1} << 40};
constexpr KeyReader::Integers kToken = {0, (1 << 24) - 1};

class ModelReader {
 public:
  ModelReader(const Json& keys, const KeyOrigin& origin)
      : keys_(keys), origin_(origin), reader_(keys_, "model.", origin) {}

  ModelConfig read() {
    ModelConfig model;
    const auto family = read_family();
    if (!family) return model;
    model.family = *family;
    family_ = model.family;
    traits_ = &traits_of(model.family);
    const std::size_t faults = origin_.problems.size();
    resolve_names(model.family);
    check_keys(model.family);
    read_common(model);
    LayerConfig layer;
    const std::int64_t layers =
        model.family == Family::kGpt2 ? read_gpt2(model, layer) : read_llama_like(model, layer);
    if (origin_.problems.size() == faults) check(model, layer.attention);
    if (origin_.problems.size() > faults) return {};
    layer.norm = model.norm;
    model.layers.assign(static_cast<std::size_t>(layers), layer);
    for (std::size_t i = 0; i < model.layers.size(); ++i) {
      AttentionConfig& attention = model.layers[i].attention;
      if (!windows_.empty()) attention.window = windows_[i];
      if (!rotates_.empty() && !rotates_[i]) attention.rope.reset();
      if (sliding_rope_ && attention.window > 0) attention.rope = sliding_rope_;
      if (experts_ && experts_->has_experts[i]) {
        model.layers[i].experts = experts_->experts;
        model.layers[i].mlp.ffn = experts_->shared_ffn;
      }
    }
    model.source = keys_;
    model.source = model_keys_json(model);
    return model;
  }

 private:
  std::optional<Family> read_family() {
    const std::vector<std::string> names = family_names();
    std::string legal;
    for (const std::string& name : names)
      legal += fmt::format("{}\"{}\"", legal.empty() ? "" : ", ", name);
    const auto type = reader_.text("model_type");
    if (!type) {
      if (reader_.find("model_type") == nullptr)
        reader_.report("model_type", legal, "", "is required");
      return std::nullopt;
    }
    const auto family = family_of(*type);
    if (!family) {
      const bool future = is_future_family(*type);
      reader_.report("model_type", legal,
                     future ? "" : nearest_choice("model.model_type", *type, names),
                     future ? "not in this version" : "is no model_type that this program knows");
    }
    return family;
  }

  /// Every key under the family's own name. Both names of one thing must agree.
  void resolve_names(Family family) {
    Json renamed = Json::object();
    for (const auto& [name, value] : keys_.as_object()) {
      const std::string_view own = own_name(family, name);
      const Json* other = own == name ? nullptr : keys_.find(own);
      if (other == nullptr) {
        renamed[own] = value;
      } else if (!(*other == value)) {
        reader_.report(name, fmt::format("the same as {}", own), shown(*other),
                       fmt::format("contradicts {}", own));
      }
    }
    keys_ = std::move(renamed);
  }

  void check_keys(Family family) {
    for (const auto& [name, value] : keys_.as_object()) {
      const ModelKey* key = find_model_key(family, name);
      if (key == nullptr) {
        reader_.unknown(name, [&, &name = name] { return nearest_model_key(family, name); });
      } else if (key->use == KeyUse::kFixed) {
        check_inactive(*key, value);
      } else if (key->use == KeyUse::kDropout) {
        if (reader_.real(name, {0, 1}).value_or(0) == 1)
          reader_.report(name, "a number from 0 to below 1", "", "leaves nothing");
      }
    }
  }

  void check_inactive(const ModelKey& key, const Json& value) {
    if (value.is_null()) return;
    const Json list = parse_json(key.inactive, key.name);
    const auto same = [&](const Json& other) {
      return other == value ||
             (other.is_number() && value.is_number() && other.as_double() == value.as_double());
    };
    if (std::any_of(list.as_array().begin(), list.as_array().end(), same)) return;
    std::string legal(key.instead.empty() ? "null" : key.instead);
    std::vector<std::string> words;
    for (const Json& item : list.as_array()) {
      legal = &item == &list.as_array()[0] ? item.dump() : legal + ", " + item.dump();
      if (item.is_string()) words.push_back(item.as_string());
    }
    reader_.report(key.name, legal,
                   value.is_string()
                       ? nearest_choice(fmt::format("model.{}", key.name), value.as_string(), words)
                       : "",
                   "not in this version");
  }

  void read_common(ModelConfig& model) {
    model.vocab_size = reader_.integer("vocab_size", kVocabulary).value_or(traits_->vocab_size);
    model.init_std = reader_.real("initializer_range", {0, 1}).value_or(0.02);
    model.tied_embeddings = reader_.boolean("tie_word_embeddings").value_or(traits_->tied);
    model.bos_token = token("bos_token_id", traits_->bos_token);
    model.end_token = token("eos_token_id", traits_->end_token);
  }

  /// A missing key is the default, null is none; of a list of end tokens the first ends a document.
  std::int64_t token(std::string_view key, std::int64_t otherwise) {
    const Json* value = keys_.find(key);
    if (value == nullptr) return otherwise;
    if (value->is_null()) return -1;
    if (value->is_array() && !value->as_array().empty()) {
      for (const Json& item : value->as_array()) {
        const auto id = exact_integer(item);
        if (!id || *id < kToken.from || *id > kToken.to) {
          reader_.report(key, "token ids from 0 up", "", "is no list of token ids");
          return -1;
        }
      }
      return *exact_integer(value->as_array()[0]);
    }
    if (exact_integer(*value) == -1) return -1;
    return reader_.integer(key, kToken).value_or(otherwise);
  }

  /// How many layers, alike but for windows_, sliding_rope_ and rotates_.
  std::int64_t read_llama_like(ModelConfig& model, LayerConfig& layer) {
    const FamilyTraits& traits = *traits_;
    AttentionConfig& attention = layer.attention;
    model.hidden = reader_.integer("hidden_size", kWidth).value_or(traits.hidden);
    layer.mlp.ffn = reader_.integer("intermediate_size", kFfn).value_or(traits.ffn);
    layer.mlp.activation = traits.activation;
    const auto layers = reader_.integer("num_hidden_layers", kLayers).value_or(traits.layers);
    attention.heads = reader_.integer("num_attention_heads", kHeads).value_or(traits.heads);
    attention.kv_heads =
        reader_.integer("num_key_value_heads", kHeads).value_or(default_kv_heads(attention.heads));
    read_head_dim(attention, model.hidden);
    model.max_positions =
        reader_.integer("max_position_embeddings", kPositions).value_or(traits.positions);
    model.norm.eps = reader_.real("rms_norm_eps", {0, 1}).value_or(traits.norm_eps);
    model.norm.weight_offset = traits.norm_offset;
    layer.norm_place = traits.norm_place;
    if (traits.scaled_embedding)
      model.embedding_scale = std::sqrt(static_cast<double>(model.hidden));
    attention.qkv_bias = traits.qkv_bias;
    if (find_model_key(family_, "qkv_bias") != nullptr && traits.qkv_bias) read_qkv_bias(attention);
    if (traits.attention_bias)
      attention.qkv_bias = reader_.boolean("attention_bias").value_or(traits.attention_biased);
    if (traits.attention_bias && traits.attention_bias_out) attention.out_bias = attention.qkv_bias;
    if (traits.mlp_bias) layer.mlp.bias = reader_.boolean("mlp_bias").value_or(false);
    attention.sinks = traits.sinks;
    attention.qk_norm = traits.qk_norm;
    if (has_switch("use_qk_norm") && reader_.boolean("use_qk_norm").value_or(false))
      attention.qk_norm = QkNorm::kHeads;
    read_score_scale(attention);
    add_default_rope(model.max_positions);
    if (traits.windows == WindowRule::kUnrotated) rotates_ = read_rotating_layers(layers);
    if (traits.windows == WindowRule::kEvery || traits.windows == WindowRule::kAsked) {
      const std::int64_t window = read_window();
      attention.window = uses_windows() ? window : 0;
    }
    if (traits.windows > WindowRule::kAsked) windows_ = read_windows(layers);
    if (traits.experts.count > 0) add_experts(model, layers, layer.mlp.ffn);
    RopeRules rules{model.max_positions, traits.rope_theta, traits.query_scaling};
    rules.partial = traits.rotated_part > 0;
    if (rules.partial) rules.part = traits.rotated_part;
    rules.of_scores = traits.latent.has_value();
    if (traits.sliding_theta > 0) {
      const RopesByType ropes = read_ropes_by_type(
          reader_, origin_, rules,
          {model.max_positions, traits.sliding_theta, false, traits.sliding_theta_key});
      attention.rope = ropes.full;
      sliding_rope_ = ropes.sliding;
    } else {
      attention.rope = read_rope(reader_, origin_, rules);
    }
    if (attention.latent)
      attention.score_scale = latent_score_scale(*attention.latent, *attention.rope);
    return layers;
  }

  void read_head_dim(AttentionConfig& attention, std::int64_t hidden) {
    if (traits_->latent) {
      attention.latent = read_latent(reader_, keys_, *traits_->latent);
      attention.head_dim = std::max(attention.latent->query_dim(), attention.latent->value_dim);
      return;
    }
    attention.head_dim = reader_.integer("head_dim", kHeadDim).value_or(0);
    if (attention.head_dim == 0 && keys_.find("head_dim") == nullptr)
      attention.head_dim = traits_->head_dim;
    derive_head_dim(attention, hidden, "num_attention_heads", "hidden_size");
  }

  void add_experts(ModelConfig& model, std::int64_t layers, std::int64_t ffn) {
    if (reader_.find("intermediate_size") == nullptr) keys_["intermediate_size"] = ffn;
    experts_ = read_experts(reader_, keys_, family_, layers, ffn);
    model.aux_coefficient = experts_->aux_coefficient;
    model.aux_loss = experts_->aux_loss;
  }

  /// Whether the family has a key, and takes either value of it.
  [[nodiscard]] bool has_switch(std::string_view name) const {
    const ModelKey* key = find_model_key(family_, name);
    return key != nullptr && key->use == KeyUse::kRead;
  }

  void read_qkv_bias(AttentionConfig& attention) {
    attention.qkv_bias = reader_.boolean("qkv_bias").value_or(true);
    if (reader_.find("qkv_bias") == nullptr) keys_["qkv_bias"] = true;
  }

  void read_score_scale(AttentionConfig& attention) {
    constexpr std::string_view kKey = "query_pre_attn_scalar";
    if (find_model_key(family_, kKey) == nullptr) return;
    const double scalar = reader_.real(kKey, {0, 1e12, true}).value_or(256);
    if (reader_.find(kKey) == nullptr) keys_[std::string(kKey)] = 256;
    attention.score_scale = 1 / std::sqrt(scalar);
  }

  /// no_rope_layers, where 1 stands for a layer with RoPE; without it every
  /// no_rope_layer_interval-th layer has none.
  std::vector<bool> read_rotating_layers(std::int64_t layers) {
    const std::int64_t interval =
        reader_.integer("no_rope_layer_interval", {1, 1 << 20}).value_or(4);
    std::vector<bool> rotates;
    for (std::int64_t i = 0; i < layers; ++i) rotates.push_back((i + 1) % interval != 0);
    const Json* list = reader_.find("no_rope_layers");
    if (list == nullptr) return rotates;
    const auto legal = [](const Json& entry) {
      const auto number = exact_integer(entry);
      return entry.is_bool() || (number && (*number == 0 || *number == 1));
    };
    if (!list->is_array() || std::ssize(list->as_array()) < layers ||
        !std::all_of(list->as_array().begin(), list->as_array().end(), legal)) {
      reader_.report("no_rope_layers",
                     fmt::format("a list of 0 and 1 (RoPE) for each of the {} layers", layers), "",
                     "has no legal form");
      return rotates;
    }
    for (std::size_t i = 0; i < rotates.size(); ++i) {
      const Json& entry = list->as_array()[i];
      rotates[i] = entry.is_bool() ? entry.as_bool() : *exact_integer(entry) == 1;
    }
    return rotates;
  }

  /// transformers' of a file that says nothing of it.
  void add_default_rope(std::int64_t positions) {
    if (traits_->default_rope.empty()) return;
    for (const char* key : {"rope_parameters", "rope_scaling"})
      if (reader_.find(key) != nullptr) return;
    if (traits_->query_scaling && reader_.find("rope_theta") != nullptr) return;
    Json& rope = keys_["rope_parameters"] = parse_json(traits_->default_rope, "rope_parameters");
    if (traits_->query_scaling) rope["max_position_embeddings"] = positions;
  }

  /// Missing; null is as many as heads.
  std::int64_t default_kv_heads(std::int64_t heads) const {
    return traits_->kv_heads == 0 || keys_.find("num_key_value_heads") != nullptr
               ? heads
               : traits_->kv_heads;
  }

  /// null is none; so is the 0 that transformers 5 writes for a qwen2_moe without windows.
  std::int64_t read_window() {
    const Json* given = keys_.find("sliding_window");
    if (given == nullptr) return traits_->window;
    if (traits_->windows == WindowRule::kFirst && *given == Json(0)) return 0;
    return reader_.integer("sliding_window", kPositions).value_or(0);
  }

  /// Of families whose windows use_sliding_window switches.
  bool uses_windows() {
    return find_model_key(family_, "use_sliding_window") == nullptr ||
           reader_.boolean("use_sliding_window").value_or(false);
  }

  std::int64_t read_gpt2(ModelConfig& model, LayerConfig& layer) {
    AttentionConfig& attention = layer.attention;
    model.hidden = reader_.integer("n_embd", kWidth).value_or(traits_->hidden);
    layer.mlp.ffn = reader_.integer("n_inner", kFfn).value_or(4 * model.hidden);
    const auto layers = reader_.integer("n_layer", kLayers).value_or(traits_->layers);
    attention.heads = attention.kv_heads =
        reader_.integer("n_head", kHeads).value_or(traits_->heads);
    derive_head_dim(attention, model.hidden, "n_head", "n_embd");
    model.max_positions = reader_.integer("n_positions", kPositions).value_or(traits_->positions);
    model.norm = {NormKind::kLayer,
                  reader_.real("layer_norm_epsilon", {0, 1}).value_or(traits_->norm_eps), 0};
    model.learned_positions = true;
    layer.mlp.activation = Activation::kGeluTanh;
    attention.qkv_bias = attention.out_bias = layer.mlp.bias = true;
    return layers;
  }

  void derive_head_dim(AttentionConfig& attention, std::int64_t hidden, std::string_view heads_key,
                       std::string_view hidden_key) {
    if (attention.head_dim != 0) return;
    const std::int64_t heads = attention.heads;
    if (hidden % heads == 0) {
      attention.head_dim = hidden / heads;
      return;
    }
    const std::int64_t below = std::max(hidden - hidden % heads, heads);
    reader_.report(heads_key, fmt::format("a divisor of {} = {}", hidden_key, hidden),
                   fmt::format("{} = {} or {}", hidden_key, below, below + heads),
                   fmt::format("{} heads do not divide {} = {} (each head has whole dims)", heads,
                               hidden_key, hidden));
  }

  void check(const ModelConfig& model, const AttentionConfig& attention) {
    const std::int64_t heads = attention.heads, kv_heads = attention.kv_heads;
    if (attention.latent) {
      check_latent(reader_, attention);
    } else if (heads % kv_heads != 0) {
      std::int64_t nearest = std::min(kv_heads, heads);
      while (heads % nearest != 0) --nearest;
      const bool missing = reader_.find("num_key_value_heads") == nullptr;
      reader_.report(
          "num_key_value_heads", fmt::format("a divisor of num_attention_heads = {}", heads),
          std::to_string(nearest),
          fmt::format("{} key/value heads{} do not divide {} heads", kv_heads,
                      missing ? " (what transformers takes for the missing key)" : "", heads));
    }
    if (attention.rope && !attention.latent && attention.head_dim % 2 != 0) {
      reader_.report(
          "head_dim", "an even number", std::to_string(attention.head_dim + 1),
          fmt::format("is {}, and rotary embedding turns pairs of dims", attention.head_dim));
    }
    if (attention.rope && attention.rope->part != 1 &&
        (attention.rotated_dims() < 2 || attention.rotated_dims() % 2 != 0)) {
      reader_.report("partial_rotary_factor", "a factor that leaves an even number of dims", "0.5",
                     fmt::format("turns {} of the {} dims of a head, and they turn in pairs",
                                 attention.rotated_dims(), attention.head_dim));
    }
    for (const char* key : {"bos_token_id", "eos_token_id"}) {
      const std::int64_t id = key[0] == 'b' ? model.bos_token : model.end_token;
      if (id >= model.vocab_size && reader_.find(key) != nullptr) {
        origin_.notes.push_back(
            fmt::format("model.{}: {} is beyond the vocabulary of {}", key, id, model.vocab_size));
      }
    }
  }

  /// Whether layers have a window where layer_types does not say.
  std::vector<bool> sliding_by_default(std::int64_t layers) {
    const std::int64_t full = reader_.integer("max_window_layers", {0, 1 << 20}).value_or(28);
    const std::int64_t pattern =
        reader_.integer("sliding_window_pattern", {1, 1 << 20}).value_or(traits_->window_pattern);
    std::vector<bool> sliding;
    for (std::int64_t i = 0; i < layers; ++i) {
      switch (traits_->windows) {
        case WindowRule::kLast:
          sliding.push_back(i >= full);
          break;
        case WindowRule::kUnrotated:
          sliding.push_back(!rotates_[static_cast<std::size_t>(i)]);
          break;
        case WindowRule::kPattern:
          sliding.push_back((i + 1) % pattern != 0);
          break;
        case WindowRule::kFirst:
          sliding.push_back(i < full && i % 2 == 0);
          break;
        default:
          sliding.push_back(true);
      }
    }
    return sliding;
  }

  /// Of each layer.
  std::vector<std::int64_t> read_windows(std::int64_t layers) {
    const std::int64_t size = read_window(), window = uses_windows() ? size : 0;
    std::vector<std::int64_t> windows(static_cast<std::size_t>(layers), 0);
    const std::vector<bool> sliding = sliding_by_default(layers);
    const Json* types = reader_.find("layer_types");
    if (types == nullptr) {
      for (std::size_t i = 0; i < windows.size(); ++i)
        if (sliding[i]) windows[i] = window;
      const bool any = std::find(sliding.begin(), sliding.end(), true) != sliding.end();
      if (any && window == 0 && traits_->windows == WindowRule::kPattern)
        reader_.report("sliding_window", "a number from 1 on", "",
                       "is null, and without layer_types some layers have a window");
      return windows;
    }
    const auto is = [](const Json& type, std::string_view word) {
      return type.is_string() && type.as_string() == word;
    };
    const bool legal =
        types->is_array() &&
        std::all_of(types->as_array().begin(), types->as_array().end(), [&](const Json& type) {
          return is(type, "full_attention") || is(type, "sliding_attention");
        });
    if (!legal) {
      reader_.report("layer_types", R"(a list of "full_attention" and "sliding_attention")", "",
                     "not in this version");
      return windows;
    }
    const std::vector<Json>& list = types->as_array();
    if (std::ssize(list) != layers) {
      reader_.report("layer_types", fmt::format("one entry for each of the {} layers", layers), "",
                     fmt::format("has {} entries", list.size()));
      return windows;
    }
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!is(list[i], "sliding_attention")) continue;
      if (window == 0) {
        reader_.report("layer_types", R"("full_attention" alone without a window in use)", "",
                       "has layers with a window, whose size the other keys do not give");
        break;
      }
      windows[i] = window;
    }
    return windows;
  }

  Json keys_;
  const KeyOrigin& origin_;
  KeyReader reader_;
  const FamilyTraits* traits_ = nullptr;
  Family family_ = Family::kLlama;
  std::optional<RopeConfig> sliding_rope_;  // where layers with a window have their own
  // Of each layer, where a family has them by layer.
  std::vector<std::int64_t> windows_;
  std::vector<bool> rotates_;
  std::optional<ExpertKeys> experts_;
};

std::filesystem::path config_file(const std::filesystem::path& path) {
  return is_folder(path) ? path / "config.json" : path;
}

Json read_keys(const std::filesystem::path& file) {
  std::vector<std::string> duplicates;
  Json keys = read_config_file(file, duplicates);
  if (!duplicates.empty()) {
    throw ConfigError("{}: the key \"{}\" stands twice (only one of the two can hold)",
                      file.string(), duplicates[0]);
  }
  if (!keys.is_object())
    throw ConfigError("{}: holds {} where a model's keys belong", file.string(), keys.kind_name());
  return keys;
}

void override_keys(Json& keys, const Json& over) {
  for (const auto& [name, value] : over.as_object()) {
    Json& target = keys[name];
    if (target.is_object() && value.is_object()) {
      override_keys(target, value);
    } else {
      target = value;
    }
  }
}

/// The same name for one thing in both, so that an override meets what it overrides.
void take_own_names(Json& keys, Json& over) {
  const Json* type =
      over.find("model_type") != nullptr ? over.find("model_type") : keys.find("model_type");
  if (type == nullptr || !type->is_string()) return;
  const auto family = family_of(type->as_string());
  if (!family) return;
  for (auto& [name, value] : over.as_object()) {
    const std::string own(own_name(*family, name));
    if (keys.find(name) == nullptr || keys.find(own) != nullptr) {
      if (over.find(own) == nullptr) name = own;
    }
  }
}

void require_config_file(const std::filesystem::path& named, const std::filesystem::path& file) {
  constexpr const char* kLegal =
      "Give a Hugging Face config.json, its folder, or the model's keys themselves";
  if (is_there(file)) return;
  if (!is_there(named)) throw DataError("{}. {}", missing_model_text(named), kLegal);
  if (is_there(named / "manifest.json")) {
    throw DataError(
        "{}: is a checkpoint. Give it as init.weights and leave \"model\" out: its model is then "
        "taken",
        named.string());
  }
  throw DataError(
      "{}: is a folder without a config.json, so that nothing says what the model is. {}",
      named.string(), kLegal);
}

}  // namespace

ModelConfig read_model(const Json& model, std::vector<Problem>& problems,
                       std::vector<std::string>& notes) {
  const Json* path = model.find("path");
  if (path == nullptr && model.is_string()) path = &model;
  KeyOrigin origin = {problems, notes, "", {}};
  if (path == nullptr && model.is_object()) return ModelReader(model, origin).read();
  if (path == nullptr || !path->is_string() || path->as_string().empty() ||
      overflowed_number(*path)) {
    problems.push_back(
        {path == &model || path == nullptr ? "model" : "model.path",
         shown(path == nullptr ? model : *path),
         "keys of a Hugging Face config, or the path of a config.json or of its directory", "",
         "has no legal form"});
    return {};
  }
  const std::filesystem::path named = path->as_string(), file = config_file(named);
  require_config_file(named, file);
  Json keys = read_keys(file);
  if (keys.find("run") != nullptr && keys.find("model_type") == nullptr) {
    throw ConfigError("{}: holds the config of a run where a model's keys belong", file.string());
  }
  origin.file = file.string();
  if (model.is_object()) {
    Json over = model;
    over.erase("path");
    take_own_names(keys, over);
    for (const auto& member : over.as_object()) origin.typed.push_back(member.first);
    override_keys(keys, over);
  }
  return ModelReader(keys, origin).read();
}

Json model_of_weights(const std::string& weights) {
  constexpr const char* kLegal =
      "Give a Hugging Face directory (config.json, model.safetensors) or a checkpoint";
  const std::filesystem::path folder = weights, file = folder / "config.json";
  if (!is_there(folder)) throw DataError("{}. {}", missing_model_text(folder), kLegal);
  if (!is_folder(folder)) {
    throw DataError("{}: is a file, and weights are read from the folder that holds them. {}",
                    weights, kLegal);
  }
  if (!is_there(file)) {
    throw DataError(
        "{}: has no config.json, manifest.json or step folders, so that nothing says which model "
        "its weights are of. {}",
        weights, kLegal);
  }
  if (read_keys(file).find("run") != nullptr) {
    throw DataError("{}: is the folder of a run without checkpoints: it has no weights. {}",
                    weights, kLegal);
  }
  return file.string();
}

ModelConfig load_model_config(const std::filesystem::path& path) {
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  ModelConfig model = read_model(path.string(), problems, notes);
  throw_problems(problems);
  for (const std::string& note : notes) log_warning_text(note);
  return model;
}

}  // namespace trireme
