#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "config/parse.h"
#include "support/temporary_directory.h"

namespace trireme {

/// The smallest legal config.
inline Json smallest_config() {
  return parse_json(R"({
    "run": {"directory": "r", "steps": 10},
    "model": {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
              "intermediate_size": 128, "vocab_size": 257},
    "data": {"train": "synthetic", "sequence_length": 32},
    "batch": {"micro": 2},
    "optimizer": {"lr": 0.001}
  })",
                    "smallest");
}

/// The smallest config with overrides, each "key.path=value".
inline LoadedConfig load_with(const std::vector<std::string>& overrides) {
  const TemporaryDirectory folder;
  return read_run_config({{folder.write("config.json", smallest_config().dump())}, overrides});
}

inline std::vector<std::string> paths_of(const std::vector<Problem>& problems) {
  std::vector<std::string> paths;
  for (const Problem& problem : problems) paths.push_back(problem.path);
  return paths;
}

/// The one problem that a config has.
inline Problem only_problem(const LoadedConfig& loaded) {
  EXPECT_EQ(loaded.problems.size(), 1U) << format_problems(loaded.problems);
  return loaded.problems.empty() ? Problem{} : loaded.problems[0];
}

inline LoadedConfig parse_text(std::string_view text) {
  return parse_run_config(parse_json(text, "test"));
}

}  // namespace trireme
