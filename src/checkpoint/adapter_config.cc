#include "checkpoint/adapter_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/file.h"
#include "base/missing_path.h"
#include "config/adapters.h"
#include "config/problem.h"

namespace trireme {

namespace {

constexpr std::int64_t kRankMax = 65536;  // that of lora.rank
constexpr const char* kAllLinear = "all-linear";

/// One object and the file that it stands in.
class Keys {
 public:
  Keys(const Json& json, std::string source) : json_(json), source_(std::move(source)) {}

  [[nodiscard]] const Json* find(std::string_view key) const {
    const Json* value = json_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  [[noreturn]] void refuse(std::string_view key, std::string_view legal) const {
    const Json* value = find(key);
    throw DataError("{}: {}: found {}, legal: {}", source_, key,
                    value == nullptr ? "nothing" : shown(*value), legal);
  }
  [[nodiscard]] bool flag(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return false;
    if (!value->is_bool()) refuse(key, "true or false");
    return value->as_bool();
  }
  [[nodiscard]] std::optional<double> number(std::string_view key, double above) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number() || !(value->as_double() > above) || !(value->as_double() < 1e9))
      refuse(key, fmt::format("a number above {}", above));
    return value->as_double();
  }
  [[nodiscard]] std::int64_t rank(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr || !value->is_integer() || value->as_integer() < 1 ||
        value->as_integer() > kRankMax)
      refuse(key, fmt::format("an integer from 1 to {}", kRankMax));
    return value->as_integer();
  }
  [[nodiscard]] std::vector<std::string> names(std::string_view key, std::string_view legal) const {
    const Json* value = find(key);
    if (value == nullptr || !value->is_array()) refuse(key, legal);
    std::vector<std::string> names;
    for (const Json& name : value->as_array()) {
      if (!name.is_string() || name.as_string().empty()) refuse(key, legal);
      names.push_back(name.as_string());
    }
    return names;
  }
  [[nodiscard]] std::string text(std::string_view key) const {
    const Json* value = find(key);
    return value != nullptr && value->is_string() ? value->as_string() : "";
  }

 private:
  const Json& json_;
  std::string source_;
};

bool is_nothing(const Json& value) {
  if (value.is_array()) return value.as_array().empty();
  if (value.is_object()) return value.as_object().empty();
  if (value.is_bool()) return !value.as_bool();
  return value.is_null();
}

/// Keys that give some adapters another rank, scale or place, or bring weights beside them.
void refuse_what_is_not_built(const Keys& keys) {
  static constexpr std::array kKeys = {"rank_pattern",
                                       "alpha_pattern",
                                       "layers_to_transform",
                                       "layer_replication",
                                       "exclude_modules",
                                       "modules_to_save",
                                       "trainable_token_indices",
                                       "lora_bias",
                                       "loftq_config",
                                       "alora_invocation_tokens",
                                       "use_qalora",
                                       "use_bdlora",
                                       "arrow_config",
                                       "kasa_config",
                                       "velora_config",
                                       "monteclora_config"};
  for (const char* key : kKeys) {
    const Json* value = keys.find(key);
    if (value != nullptr && !is_nothing(*value))
      keys.refuse(key, "nothing (adapters of one rank and scale, without weights beside them)");
  }
  const Json* bias = keys.find("bias");
  if (bias != nullptr && *bias != Json("none")) keys.refuse("bias", "\"none\"");
  // Others draw A and B alone; these move a part of the base into them, or mean another product.
  const std::string init = keys.text("init_lora_weights");
  for (const char* changing : {"pissa", "olora", "corda", "loftq", "mica", "lora_ga"}) {
    if (init.starts_with(changing)) {
      keys.refuse("init_lora_weights",
                  "one that leaves the base as it is (peft converts such an adapter: "
                  "save_pretrained with path_initial_model_for_weight_conversion)");
    }
  }
}

/// Of experts, by ends of names that begin with "experts." at the latest; peft takes shorter ones.
std::vector<std::string> target_parameters(const Keys& keys) {
  constexpr const char* kKey = "target_parameters";
  constexpr const char* kLegal =
      "experts.gate_up_proj, experts.down_proj, or ends of their full names";
  if (keys.find(kKey) == nullptr) return {};
  std::vector<std::string> names = keys.names(kKey, kLegal);
  for (std::string& name : names) {
    if (name == "gate_up_proj" || name == "down_proj") name = "experts." + name;
    const bool product =
        name.ends_with("experts.gate_up_proj") || name.ends_with("experts.down_proj");
    if (!product || !names_experts(name)) keys.refuse(kKey, kLegal);
  }
  return names;
}

void take_targets(const Keys& keys, RunConfig::Lora& lora) {
  constexpr const char* kKey = "target_modules";
  constexpr const char* kLegal =
      "a list of modules' names or their ends, or \"all-linear\" (a regular expression is not "
      "read)";
  const Json* value = keys.find(kKey);
  const std::vector<std::string> parameters = target_parameters(keys);
  if (value != nullptr && *value == Json(kAllLinear)) {
    if (!parameters.empty()) keys.refuse(kKey, "a list of modules' names beside target_parameters");
    return;
  }
  if (value != nullptr || parameters.empty()) lora.targets = keys.names(kKey, kLegal);
  if (std::any_of(lora.targets.begin(), lora.targets.end(), names_experts))
    keys.refuse(kKey, "modules (experts' products are parameters, in target_parameters)");
  lora.targets.insert(lora.targets.end(), parameters.begin(), parameters.end());
  if (lora.targets.empty()) keys.refuse(kKey, kLegal);
}

/// The linear products that the adapters stand beside.
std::set<std::string> adapted_modules(const RunConfig::Lora& lora, const ModelConfig& model) {
  const AdapterConfig adapters{*lora.rank, lora.scale(), lora.dora, lora.targets};
  std::set<std::string> names;
  for (const LinearModule& module : linear_modules(model))
    if (adapters.adapts(module.name)) names.insert(module.name);
  return names;
}

/// "self_attn.q_proj" of "model.layers.0.self_attn.q_proj"; what is of no layer is whole.
std::string within_layer(const std::string& module) {
  if (module == kHeadModule) return module;
  std::size_t at = module.find("layers.");
  at = module.find('.', at == std::string::npos ? module.find("h.") : at);
  return module.substr(module.find('.', at + 1) + 1);
}

/// The modules that peft is to look for. Experts' products are called as those of a dense layer are
/// in older versions, so that ends of names say which branch is meant.
std::vector<std::string> peft_targets(RunConfig::Lora lora, const ModelConfig& model) {
  const bool all = lora.targets.empty();
  std::erase_if(lora.targets, names_experts);
  if (lora.targets.empty() && !all) return {};
  const auto is_full = [](const std::string& target) {
    return target.find('.') != std::string::npos;
  };
  const bool plain = !model.has_experts();
  if (plain && !lora.targets.empty()) return lora.targets;
  if (!lora.targets.empty() && std::all_of(lora.targets.begin(), lora.targets.end(), is_full))
    return lora.targets;
  std::set<std::string> targets;
  for (const std::string& target : lora.targets)
    if (is_full(target)) targets.insert(target);
  RunConfig::Lora short_ones = lora;
  std::erase_if(short_ones.targets, is_full);
  for (const std::string& module : adapted_modules(short_ones, model))
    targets.insert(plain ? module.substr(module.rfind('.') + 1) : within_layer(module));
  return {targets.begin(), targets.end()};
}

}  // namespace

bool looks_like_adapter(const std::filesystem::path& folder) {
  return is_there(folder / kAdapterConfigName);
}

AdapterFacts read_adapter_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kAdapterConfigName;
  if (!is_there(path))
    throw DataError("{}. Give a folder that peft's save_pretrained has made",
                    missing_path_text(path));
  const Json json = parse_json(read_file(path), path.string());
  if (!json.is_object()) throw DataError("{}: is no JSON object", path.string());
  const Keys keys(json, path.string());
  if (keys.text("peft_type") != "LORA") keys.refuse("peft_type", "\"LORA\"");
  refuse_what_is_not_built(keys);
  AdapterFacts facts;
  facts.lora.rank = keys.rank("r");
  facts.lora.alpha = keys.number("lora_alpha", 0);
  if (!facts.lora.alpha) keys.refuse("lora_alpha", "a number above 0");
  facts.lora.rslora = keys.flag("use_rslora");
  facts.lora.dora = keys.flag("use_dora");
  (void)keys.flag("fan_in_fan_out");  // how W is stored, which the model's family says
  take_targets(keys, facts.lora);
  facts.base = keys.text("base_model_name_or_path");
  return facts;
}

std::optional<AdapterFacts> adapters_of(const Manifest& manifest, std::string_view source) {
  const Json* config = manifest.scalars.find("config");
  const Json* section = config == nullptr ? nullptr : config->find("lora");
  const Json* rank = section == nullptr ? nullptr : section->find("rank");
  if (rank == nullptr || rank->is_null()) return std::nullopt;
  const Keys keys(*section, fmt::format("{}: scalars.config.lora", source));
  AdapterFacts facts;
  RunConfig::Lora& lora = facts.lora;
  lora.rank = keys.rank("rank");
  lora.alpha = keys.number("alpha", 0);
  lora.rslora = keys.flag("rslora");
  lora.dora = keys.flag("dora");
  lora.dropout = keys.number("dropout", -1).value_or(0);
  if (keys.find("targets") != nullptr) lora.targets = keys.names("targets", "a list of names");
  const std::string base = keys.text("base");
  lora.base = base == "nf4"    ? LoraBase::kNf4
              : base == "fp32" ? LoraBase::kFp32
                               : LoraBase::kCompute;
  const Json* of_base = manifest.scalars.find("base");
  const Json* path = of_base == nullptr ? nullptr : of_base->find("path");
  if (path == nullptr || !path->is_string())
    throw DataError("{}: scalars.base.path is no path (adapters stand beside its weights)", source);
  facts.base = path->as_string();
  if (const Json* hashes = of_base->find("hashes")) facts.base_hashes = *hashes;
  return facts;
}

Json adapter_config_json(const AdapterFacts& facts, const ModelConfig& model) {
  const RunConfig::Lora& lora = facts.lora;
  Json json = Json::object();
  json["peft_type"] = "LORA";
  json["task_type"] = "CAUSAL_LM";
  json["base_model_name_or_path"] = facts.base.empty() ? Json() : Json(facts.base);
  json["r"] = *lora.rank;
  const double alpha = lora.alpha.value_or(static_cast<double>(*lora.rank));
  const auto whole_alpha = static_cast<std::int64_t>(alpha);
  json["lora_alpha"] = static_cast<double>(whole_alpha) == alpha ? Json(whole_alpha) : Json(alpha);
  json["target_modules"] = Json::array();
  for (const std::string& target : peft_targets(lora, model))
    json["target_modules"].push_back(target);
  for (const std::string& target : lora.targets)
    if (names_experts(target)) json["target_parameters"].push_back(target);
  json["lora_dropout"] = lora.dropout;
  json["bias"] = "none";
  json["use_rslora"] = lora.rslora;
  json["use_dora"] = lora.dora;
  json["fan_in_fan_out"] = model.weights_in_out();
  json["init_lora_weights"] = true;
  json["inference_mode"] = true;
  json["modules_to_save"] = Json();
  json["layers_to_transform"] = Json();
  json["rank_pattern"] = Json::object();
  json["alpha_pattern"] = Json::object();
  return json;
}

std::string adapter_difference(const RunConfig::Lora& found, const RunConfig::Lora& wanted,
                               const ModelConfig& model, std::string_view where) {
  if (*found.rank != *wanted.rank)
    return fmt::format("rank {}, {} has {}", *found.rank, where, *wanted.rank);
  if (found.scale() != wanted.scale()) {
    return fmt::format("scale {} (alpha {}{}), {} has {} (alpha, rslora)", found.scale(),
                       found.alpha.value_or(static_cast<double>(*found.rank)),
                       found.rslora ? ", rslora" : "", where, wanted.scale());
  }
  if (found.dora != wanted.dora)
    return fmt::format("dora {}, {} has {}", found.dora, where, wanted.dora);
  const std::set<std::string> mine = adapted_modules(found, model),
                              theirs = adapted_modules(wanted, model);
  std::vector<std::string> differing;
  std::set_symmetric_difference(mine.begin(), mine.end(), theirs.begin(), theirs.end(),
                                std::back_inserter(differing));
  if (differing.empty()) return "";
  const bool here = mine.contains(differing.front());
  return fmt::format("targets: {}adapter beside {}, {} has {}", here ? "an " : "no ",
                     differing.front(), where, here ? "none" : "one");
}

ModelConfig with_adapters(const ModelConfig& model, const RunConfig::Lora& lora,
                          std::string_view source) {
  for (const std::string& target : lora.targets) {
    RunConfig::Lora alone = lora;
    alone.targets = {target};
    if (!adapted_modules(alone, model).empty()) continue;
    std::set<std::string> ends;
    for (const LinearModule& module : linear_modules(model)) ends.insert(within_layer(module.name));
    throw DataError("{}: the target {}: {}. Legal: {}", source, target,
                    why_no_target(model, target), fmt::join(ends, ", "));
  }
  ModelConfig adapted = model;
  set_adapters(adapted, {*lora.rank, lora.scale(), lora.dora, lora.targets});
  if (lora.dora && adapts_experts(adapted))
    throw DataError("{}: DoRA beside experts (there is none, nor in peft)", source);
  return adapted;
}

}  // namespace trireme
