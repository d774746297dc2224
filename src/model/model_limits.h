#pragma once
// What the ops take less of than a model config may ask for.

#include <optional>

#include "config/model_config.h"
#include "config/problem.h"

namespace trireme {

/// The fault of a model that no op of this version computes; nothing where all do.
std::optional<Problem> find_unbuilt(const ModelConfig& model);

/// The fault of a model that trains and that tokens cannot be generated from, one after another.
std::optional<Problem> find_ungenerated(const ModelConfig& model);

/// Both as ConfigError, for commands that have no config of a run.
void require_generated(const ModelConfig& model);

}  // namespace trireme
