#pragma once
// What is known of the experts of a model, layer by layer, in files:
//   load       {"load": [[tokens of expert 0, of 1, ...], null, ...]}        null: a layer without
//   placement  {"placement": [[the expert rank of expert 0, of 1, ...], ...]}

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "config/model_config.h"

namespace trireme {

using ExpertLoad = std::vector<std::vector<std::int64_t>>;       ///< [layers][experts or none]
using ExpertPlacement = std::vector<std::vector<std::int32_t>>;  ///< likewise; empty: neighbours

/// Faults name `source`, layer and expert. DataError where it is not a load of this model.
ExpertLoad parse_expert_load(const Json& json, std::string_view source, const ModelConfig& model);
/// ConfigError where it is not a placement of this model on that many ranks, as many experts on
/// each.
ExpertPlacement parse_expert_placement(const Json& json, std::string_view source,
                                       const ModelConfig& model, std::int64_t ranks);
Json expert_load_json(const ExpertLoad& load);
Json expert_placement_json(const ExpertPlacement& placement);

/// DataError, too, where the file cannot be read.
ExpertLoad read_expert_load(const std::string& path, const ModelConfig& model);
ExpertPlacement read_expert_placement(const std::string& path, const ModelConfig& model,
                                      std::int64_t ranks);

}  // namespace trireme
