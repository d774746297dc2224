#pragma once
// The dropouts of a model's config: which there are, and who switches them on.

#include <string>
#include <vector>

#include "config/run_config.h"

namespace trireme {

/// Sets the rates of config.model (attn_pdrop, ... of its keys, transformers' where they are
/// missing) with model_backend.dropout; without it notes in one line those above 0 that the config
/// asks for.
void take_dropout(RunConfig& config, std::vector<std::string>& notes);

}  // namespace trireme
