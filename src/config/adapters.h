#pragma once
// Which linear products of a model have adapters (AdapterConfig).

#include <string>
#include <vector>

#include "config/problem.h"
#include "config/run_config.h"

namespace trireme {

/// A linear product of a layer that adapters may stand beside, by the name that transformers gives
/// the module: "model.layers.0.self_attn.q_proj", and where a layer counts its adapter's rank.
/// Experts and routers are none.
struct LinearModule {
  std::string name;
  std::int64_t AdapterRanks::*place = nullptr;
};
std::vector<LinearModule> linear_modules(const ModelConfig& config, std::int64_t layer);

/// Gives the config's model the adapters that `lora` asks for. A target that no product of the
/// model ends in is a fault ("lora.targets").
void take_adapters(RunConfig& config, std::vector<Problem>& problems);

/// The same for a model whose adapters are known, as those of a checkpoint.
void set_adapters(ModelConfig& model, const AdapterConfig& adapters);

/// The first layer that has adapters: below it nothing is trained. 0 where the whole model is.
std::int64_t first_trained_layer(const ModelConfig& model);

}  // namespace trireme
