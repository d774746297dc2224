#pragma once

#include "config/key_reader.h"
#include "config/model_config.h"

namespace trireme {

/// Rotary embedding from rope_parameters (transformers 5), or rope_theta and rope_scaling
/// (transformers 4), or both where they agree. `reader` reads the model's keys, found at `origin`;
/// `otherwise` is the base where none of them has it.
RopeConfig read_rope(KeyReader& reader, const KeyOrigin& origin, std::int64_t max_positions,
                     double otherwise);

/// The dictionary for rope_parameters ("rope_type", "rope_theta", ...).
Json rope_parameters_json(const RopeConfig& rope);

}  // namespace trireme
