#pragma once

#include "config/key_reader.h"
#include "config/model_config.h"

namespace trireme {

/// What the family has to say.
struct RopeRules {
  std::int64_t max_positions = 0;
  double theta = 10000;                       ///< where no key has it
  bool query_scaling = false;                 ///< llama_4_scaling_beta is a key, of yarn
  std::string_view theta_key = "rope_theta";  ///< of the model; "": none
  double part = 1;                            ///< where partial_rotary_factor is missing
  bool partial = false;                       ///< whether that may be below 1
  bool of_scores = false;                     ///< mscale_all_dim is also of the scores, by yarn
};

/// Rotary embedding from rope_parameters (transformers 5), or rope_theta and rope_scaling
/// (transformers 4), or both where they agree. `reader` reads the model's keys, found at `origin`.
RopeConfig read_rope(KeyReader& reader, const KeyOrigin& origin, const RopeRules& rules);

/// The same where rope_parameters holds a dictionary for each type of layers. rope_theta and
/// rope_scaling speak of "full_attention", those that see all.
struct RopesByType {
  RopeConfig full, sliding;
};
RopesByType read_ropes_by_type(KeyReader& reader, const KeyOrigin& origin, const RopeRules& full,
                               const RopeRules& sliding);

/// The dictionary for rope_parameters ("rope_type", "rope_theta", ...).
Json rope_parameters_json(const RopeConfig& rope);

}  // namespace trireme
