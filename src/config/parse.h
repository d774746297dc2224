#pragma once
// From files and overrides to a RunConfig, by the field table. Form and range only: what needs the
// world size, the mesh, the model's sizes or the data is checked by plan/resolve.

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "config/problem.h"
#include "config/run_config.h"

namespace trireme {

struct ConfigInput {
  std::vector<std::filesystem::path> files;  ///< later wins
  std::vector<std::string> overrides;        ///< "key.path=value", laid over all files in order
};

struct LoadedConfig {
  RunConfig config;                ///< complete where there are no problems
  Json given;                      ///< the files and overrides made one
  std::vector<Problem> problems;   ///< every fault, in order of the fields
  std::vector<std::string> notes;  ///< one line each for stderr: what is not applied or falls back
};

/// The value that "model" would have, for a config that names none: what its init.weights, or a
/// checkpoint to go on from, says. Throws Error where that says nothing; may add notes.
using ModelFinder = std::function<Json(const RunConfig&, std::vector<std::string>& notes)>;

/// Throws DataError where a file cannot be read, ConfigError (file, line, column) where it is not
/// JSON; everything else becomes a problem, a model that cannot be read too: without problems the
/// config has a model. Relative paths are those of the working directory. `find` is by default
/// model_of_weights, which knows Hugging Face directories alone.
LoadedConfig read_run_config(const ConfigInput& input, const ModelFinder& find = {});

/// The same from merged JSON, e.g. a config.json sent by rank 0.
LoadedConfig parse_run_config(const Json& merged);

/// Every default written out, the model as inline keys; unset options with a derived default are
/// left out. parse_run_config of it gives an equal config.
Json resolved_json(const RunConfig& config);

}  // namespace trireme
