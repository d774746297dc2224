#pragma once
// Which linear products of a model have adapters (AdapterConfig).

#include <string>
#include <vector>

#include "config/problem.h"
#include "config/run_config.h"

namespace trireme {

/// A linear product of a layer that adapters may stand beside, by the name that transformers gives
/// the module: "model.layers.0.self_attn.q_proj", and where a layer counts its adapter's rank. Of
/// all of a layer's experts one name, that of transformers' parameter, whatever the family's files
/// say: "model.layers.0.mlp.experts.gate_up_proj", "....down_proj". Routers are none.
struct LinearModule {
  std::string name;
  std::int64_t AdapterRanks::*place = nullptr;
  bool of_experts = false;
};
std::vector<LinearModule> linear_modules(const ModelConfig& config, std::int64_t layer);

/// Whether a module or a target is of experts: "experts.down_proj", not "down_proj".
bool names_experts(std::string_view name);
/// The parameter "model.layers.0.mlp.experts.3.down_proj.lora_A.weight" of the module
/// "model.layers.0.mlp.experts.down_proj"; `factor`: 'A' or 'B'. B's rows are those of gate, then
/// those of up.
std::string expert_adapter_name(std::string_view module, std::int64_t expert, char factor);
/// Whether any of the model's adapters stand beside experts.
bool adapts_experts(const ModelConfig& model);

/// Gives the config's model the adapters that `lora` asks for. A target that no product of the
/// model ends in is a fault ("lora.targets"), and what peft has no adapters of experts with.
void take_adapters(RunConfig& config, std::vector<Problem>& problems);

/// The same for a model whose adapters are known, as those of a checkpoint.
void set_adapters(ModelConfig& model, const AdapterConfig& adapters);

/// The first layer that has adapters: below it nothing is trained. 0 where the whole model is.
std::int64_t first_trained_layer(const ModelConfig& model);

}  // namespace trireme
