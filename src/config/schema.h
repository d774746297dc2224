#pragma once
// The field table as JSON Schema draft-07, for editors; configs/README.md is the same for people.

#include <string>

#include "base/json.h"
#include "config/fields.h"

namespace trireme {

/// The schema of a config file: type, range, default, examples, and in each description the names
/// that Megatron, DeepSpeed, transformers and torchtitan use.
Json config_schema();

/// "Learning rate after the warm-up. A number of at least 0; ...; Megatron: --lr; ..."
std::string describe(const Field& field);

}  // namespace trireme
