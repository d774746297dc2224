#pragma once
// Which linear products of a model have adapters (AdapterConfig).

#include <string>
#include <vector>

#include "config/problem.h"
#include "config/run_config.h"

namespace trireme {

inline constexpr std::string_view kHeadModule = "lm_head";

/// A linear product that adapters may stand beside, by the name that transformers gives the module:
/// "model.layers.0.self_attn.q_proj", and where its layer counts its adapter's rank. Of all of a
/// layer's experts one name, that of transformers' parameter, whatever the family's files say:
/// "model.layers.0.mlp.experts.gate_up_proj", "....down_proj". Routers are none. A head of its own
/// (kHeadModule) comes last.
struct LinearModule {
  std::string name;
  std::int64_t layer = 0;
  std::int64_t AdapterRanks::*place = nullptr;  ///< null: the head, of no layer
  bool of_experts = false;
  [[nodiscard]] bool of_layer() const { return place != nullptr; }
};
std::vector<LinearModule> linear_modules(const ModelConfig& config);
/// Whether files have the weight of such a module as [in, out].
bool stored_in_out(const ModelConfig& config, std::string_view module);

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

/// Why a target names nothing that may have an adapter.
std::string why_no_target(const ModelConfig& model, std::string_view target);

/// The same for a model whose adapters are known, as those of a checkpoint.
void set_adapters(ModelConfig& model, const AdapterConfig& adapters);

/// The first layer that has adapters: below it nothing is trained. 0 where the whole model is, the
/// number of layers where the head alone has any.
std::int64_t first_trained_layer(const ModelConfig& model);
inline bool trains_layers(const ModelConfig& model) {
  return first_trained_layer(model) < model.layer_count();
}
/// Elements of A and B beside the head.
inline std::int64_t head_adapter_elements(const ModelConfig& model) {
  return model.head_adapter_rank * (model.hidden + model.vocab_size);
}

}  // namespace trireme
