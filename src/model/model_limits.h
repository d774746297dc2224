#pragma once
// What the ops take less of than a model config may ask for.

#include <optional>

#include "config/model_config.h"
#include "config/problem.h"

namespace trireme {

/// The fault of a model that no op of this version computes; nothing where all do.
std::optional<Problem> find_unbuilt(const ModelConfig& model);

/// find_unbuilt as ConfigError, for commands that have no config of a run.
void require_built(const ModelConfig& model);

}  // namespace trireme
