#pragma once
// What must hold for one config, and the files that configs refer to.

#include <cstdint>
#include <filesystem>

#include "e2e/random_configs/random_config.h"

namespace trireme {

struct Tools {
  std::filesystem::path train, golden, launcher;
};

struct Case {
  std::filesystem::path folder;  ///< made here
  std::int64_t index = 0;
  bool ranks_too = true;  ///< start it also where it wants several ranks
};

struct Verdict {
  std::string outcome;                  ///< "run", "refused", "too large to run", ...
  std::vector<std::string> faults;      ///< none: all that must hold does
  std::vector<std::string> refused_at;  ///< paths
};

/// Token files, tokenizers, a run to start from. Throws where the binary cannot make them.
Fixtures make_fixtures(const Tools& tools, const std::filesystem::path& folder);

Verdict judge(const RandomConfig& drawn, const Case& the_case, const Tools& tools);

}  // namespace trireme
