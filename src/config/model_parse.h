#pragma once
// A ModelConfig from Hugging Face config keys of the families of families.cc; a missing key takes
// transformers 5's default for the model_type; null is "missing" but where transformers means more
// (num_key_value_heads, head_dim, n_inner, sliding_window, q_lora_rank, rope_interleave,
// norm_topk_prob, ids).
//
// Keys that do not change training are let pass; a feature that this program lacks is refused when
// active. An unknown key is a problem where a person typed it, a note in a file.

#include <filesystem>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "config/model_config.h"
#include "config/problem.h"

namespace trireme {

/// The value of "model": keys, a path of a config.json or its directory, or {"path": P, key:
/// override}. A model without layers where there are problems. Throws DataError where a file cannot
/// be read, ConfigError where it is not JSON.
ModelConfig read_model(const Json& model, std::vector<Problem>& problems,
                       std::vector<std::string>& notes);

/// What read_model takes, of a Hugging Face directory of weights: the path of its config.json.
/// Throws DataError where `weights` is not there, no folder, or has no such file.
Json model_of_weights(const std::string& weights);

/// read_model of a path, notes logged as warnings, ConfigError listing all problems.
ModelConfig load_model_config(const std::filesystem::path& path);

/// The keys of the family with every default written out, rope in both spellings. Reading them
/// gives an equal model. Keys of `model.source` that the program lets pass stay.
Json model_keys_json(const ModelConfig& model);

/// "model.head_dim: 16 in WHERE, 32 in WHERE_WANTED" for the first key in which the shape of two
/// models differs, the heads that a matrix holds among them; "" where they agree.
std::string shape_difference(const ModelConfig& saved, const ModelConfig& wanted,
                             std::string_view where, std::string_view where_wanted = "the config");

/// The config.json of an export: model_keys_json with architectures, model_type, dtype and
/// torch_dtype. transformers 4 and 5 make the same model of it.
Json hf_config_json(const ModelConfig& model, DType dtype);

}  // namespace trireme
