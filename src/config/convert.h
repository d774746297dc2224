#pragma once
// Configs from other systems' arguments: Megatron-LM's command line or script, DeepSpeed's JSON.
//
// Values are translated to what gives the same training here: where the other system's default
// differs from ours and nothing was given, its default is written out. What cannot be said in our
// keys is never guessed: it is left out and reported.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace trireme {

enum class ForeignSystem : std::uint8_t { kMegatron, kDeepSpeed };

struct Conversion {
  ForeignSystem system = ForeignSystem::kMegatron;
  /// Our config in the order of the contract. read_run_config takes it once `missing` is added.
  Json config;
  std::vector<std::string> missing;  ///< "run.directory: why", required and not known
  std::vector<std::string> unset;    ///< "tokenizer: why", not required, better set
  std::vector<std::string> remarks;  ///< translations that are not exact, values that conflict
  std::vector<std::string> nothing;  ///< "--a, --b: why these have no meaning here"
  std::vector<std::string> unknown;  ///< names that the table does not have
};

/// Without `system` a text that begins with `{` is DeepSpeed's JSON. `source` names it in faults.
/// Throws ConfigError where the text cannot be read or holds no argument that is known.
Conversion convert_config(std::string_view text, std::string_view source,
                          std::optional<ForeignSystem> system);

}  // namespace trireme
