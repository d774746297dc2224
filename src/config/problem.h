#pragma once
// One fault of a config, and how a list of them is reported. Faults are collected, not thrown one
// by one: a person who waited in a queue wants to hear all of them.

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace trireme {

struct Problem {
  std::string path;     ///< "optimizer.lr"; "" for the config as a whole
  std::string found;    ///< the value as JSON, "nothing" where it is missing
  std::string legal;    ///< what may stand there
  std::string nearest;  ///< the nearest legal key or value; empty where none comes to mind
  std::string message;  ///< what is wrong and why it matters, without the above
  /// What to write there, as JSON text, where `nearest` is a key and the value found says it.
  std::string value = "";
  ExitCode code = ExitCode::kConfig;  ///< kData: a file it names; kEnvironment: hardware
};

/// "optimizer.lr: must be a number. Found \"x\"; legal: a number above 0; nearest: 0.001."
std::string format_problem(const Problem& problem);

/// Of unknown keys that other systems name so, the path of ours that each means.
std::set<std::string> keys_meant(const std::vector<Problem>& problems);
inline constexpr const char* kUnknownKey = "unknown key";

/// "data.seed: what is wrong" as a fault of that key, else of `otherwise`. With the error's code.
Problem problem_of(const Error& error, std::string_view otherwise);

/// How many problems people are shown, and get a nearest key looked for: a hostile file has more.
inline constexpr std::size_t kProblemsShown = 100;

/// A heading and a line for each problem; of very many the first. A long list stands once.
std::string format_problems(const std::vector<Problem>& problems);

/// Whether any of them is of this section or key ("data", "optimizer.lr").
bool has_problem_in(const std::vector<Problem>& problems, std::string_view section);

/// Throws an Error with all, ConfigError unless all have another code; returns if there are none.
void throw_problems(const std::vector<Problem>& problems);

/// [{path, found, legal, nearest, message}], as `plan --json` prints it.
Json problems_json(const std::vector<Problem>& problems);

/// A value as it is shown to people: JSON on one line, cut after 60 characters.
std::string shown(const Json& value);

}  // namespace trireme
