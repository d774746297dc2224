#include "config/adapters.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/nearest_word.h"
#include "base/random.h"

namespace trireme {

namespace {

/// "q_proj" and "self_attn.q_proj" are ends of "model.layers.0.self_attn.q_proj".
bool ends_in(std::string_view module, std::string_view target) {
  if (!module.ends_with(target)) return false;
  return module.size() == target.size() || module[module.size() - target.size() - 1] == '.';
}

bool is_named_by(std::string_view module, std::string_view target) {
  return ends_in(module, target) && names_experts(module) == names_experts(target);
}

/// What the products are called: "q_proj", in order.
std::vector<std::string> short_names(const ModelConfig& config) {
  std::vector<std::string> names;
  std::set<std::string> known;
  for (const LinearModule& module : linear_modules(config)) {
    std::string name = module.name.substr(module.name.rfind('.') + 1);
    if (module.of_experts) name = "experts." + name;
    if (known.insert(name).second) names.push_back(std::move(name));
  }
  return names;
}

bool is_target(const ModelConfig& config, const std::string& target) {
  const std::vector<LinearModule> modules = linear_modules(config);
  return std::any_of(modules.begin(), modules.end(),
                     [&](const LinearModule& module) { return is_named_by(module.name, target); });
}

}  // namespace

bool names_experts(std::string_view name) {
  constexpr std::string_view kExperts = "experts.";
  return name.starts_with(kExperts) || name.find(".experts.") != std::string_view::npos;
}

std::string expert_adapter_name(std::string_view module, std::int64_t expert, char factor) {
  const std::size_t name = module.rfind('.') + 1;
  return fmt::format("{}{}.{}.lora_{}.weight", module.substr(0, name), expert, module.substr(name),
                     factor);
}

bool adapts_experts(const ModelConfig& model) {
  return std::any_of(model.layers.begin(), model.layers.end(), [](const LayerConfig& layer) {
    return layer.adapters.experts_in + layer.adapters.experts_out > 0;
  });
}

bool AdapterConfig::adapts(std::string_view module) const {
  if (targets.empty()) return module != kHeadModule && !names_experts(module);
  return std::any_of(targets.begin(), targets.end(),
                     [&](const auto& target) { return is_named_by(module, target); });
}

double RunConfig::Lora::scale() const {
  const auto r = static_cast<double>(rank.value_or(1));
  return alpha.value_or(r) / (rslora ? std::sqrt(r) : r);
}

namespace {

void add_modules(const ModelConfig& config, std::int64_t layer,
                 std::vector<LinearModule>& modules) {
  using Ranks = AdapterRanks;
  const LayerConfig& of = config.layer(layer);
  const bool gpt2 = config.family == Family::kGpt2;
  const std::string prefix = fmt::format("{}{}.", gpt2 ? "transformer.h." : "model.layers.", layer);
  const auto add = [&](const std::string& branch, const char* name, std::int64_t Ranks::*place) {
    const std::string full = fmt::format("{}{}{}", prefix, branch, name);
    modules.push_back({full, layer, place, names_experts(full)});
  };
  if (gpt2) {
    add("attn.", "c_attn", &Ranks::attention_in);
    add("attn.", "c_proj", &Ranks::attention_out);
    add("mlp.", "c_fc", &Ranks::mlp_in);
    add("mlp.", "c_proj", &Ranks::mlp_out);
    return;
  }
  const std::string attention = "self_attn.";
  if (const auto& latent = of.attention.latent) {
    if (latent->q_rank > 0) add(attention, "q_a_proj", &Ranks::attention_in);
    add(attention, "kv_a_proj_with_mqa", &Ranks::attention_in);
    add(attention, latent->q_rank > 0 ? "q_b_proj" : "q_proj", &Ranks::q_up);
    add(attention, "kv_b_proj", &Ranks::kv_up);
  } else {
    for (const char* name : {"q_proj", "k_proj", "v_proj"})
      add(attention, name, &Ranks::attention_in);
  }
  add(attention, "o_proj", &Ranks::attention_out);
  if (of.experts) {
    add("mlp.experts.", "gate_up_proj", &Ranks::experts_in);
    add("mlp.experts.", "down_proj", &Ranks::experts_out);
  }
  if (of.mlp.ffn == 0) return;
  std::string mlp = "mlp.";
  if (of.experts) mlp += config.family == Family::kQwen2Moe ? "shared_expert." : "shared_experts.";
  for (const char* name : {"gate_proj", "up_proj"}) add(mlp, name, &Ranks::mlp_in);
  add(mlp, "down_proj", &Ranks::mlp_out);
}

}  // namespace

std::vector<LinearModule> linear_modules(const ModelConfig& config) {
  std::vector<LinearModule> modules;
  for (std::int64_t layer = 0; layer < config.layer_count(); ++layer)
    add_modules(config, layer, modules);
  if (!config.tied_embeddings) modules.push_back({std::string(kHeadModule), config.layer_count()});
  return modules;
}

bool stored_in_out(const ModelConfig& config, std::string_view module) {
  return config.weights_in_out() && module != kHeadModule;
}

void set_adapters(ModelConfig& model, const AdapterConfig& adapters) {
  model.adapters = adapters;
  model.head_adapter_rank = 0;
  for (LayerConfig& layer : model.layers) layer.adapters = {};
  for (const LinearModule& module : linear_modules(model)) {
    if (!adapters.adapts(module.name)) continue;
    std::int64_t& rank =
        module.of_layer()
            ? model.layers[static_cast<std::size_t>(module.layer)].adapters.*module.place
            : model.head_adapter_rank;
    rank += adapters.rank;
  }
}

std::int64_t first_trained_layer(const ModelConfig& model) {
  if (!model.adapters) return 0;
  const auto adapted = [](const LayerConfig& layer) { return layer.adapters != AdapterRanks(); };
  return std::find_if(model.layers.begin(), model.layers.end(), adapted) - model.layers.begin();
}

std::string why_no_target(const ModelConfig& model, std::string_view target) {
  if (target == kHeadModule && model.tied_embeddings)
    return "this head is the embedding: an adapter beside one would be one of both";
  return fmt::format("is no linear product of this {}", name_of(model.family));
}

void take_adapters(RunConfig& config, std::vector<Problem>& problems) {
  const RunConfig::Lora& lora = config.lora;
  for (const std::string& target : lora.targets) {
    if (is_target(config.model, target)) continue;
    const std::vector<std::string> names = short_names(config.model);
    problems.push_back({"lora.targets", shown(Json(target)),
                        fmt::format("{}, or ends of their full names", fmt::join(names, ", ")),
                        nearest_word(target, names).value_or(""),
                        why_no_target(config.model, target)});
  }
  set_adapters(config.model, {*lora.rank, lora.scale(), lora.dora, lora.targets, lora.dropout,
                              stream_key(config.run.seed, "lora.dropout")});
  if (!adapts_experts(config.model)) return;
  const auto refuse = [&](const char* path, Json value, const char* legal) {
    problems.push_back({path, shown(value), legal, "", "peft has none beside experts"});
  };
  if (lora.dora) refuse("lora.dora", Json(true), "false, or lora.targets without experts");
  if (lora.dropout > 0)
    refuse("lora.dropout", Json(lora.dropout), "0, or lora.targets without experts");
}

}  // namespace trireme
