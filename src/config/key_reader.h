#pragma once
// Typed reads of the keys of one JSON object that note each fault with its path.

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/problem.h"

namespace trireme {

/// Where keys were found and where their faults go.
struct KeyOrigin {
  std::vector<Problem>& problems;
  std::vector<std::string>& notes;
  std::string file;                     ///< "" where the keys stand in the config itself
  std::vector<std::string> typed = {};  ///< keys of the file's object that the config overrides

  [[nodiscard]] std::string file_of(std::string_view key) const;
};

class KeyReader {
 public:
  /// `prefix` ends in a dot ("model."). Both references must outlive the reader.
  KeyReader(const Json& keys, std::string prefix, const KeyOrigin& origin)
      : keys_(keys), prefix_(std::move(prefix)), origin_(origin) {}

  struct Integers {
    std::int64_t from, to;
  };
  struct Reals {
    double from, to;
    bool from_excluded = false;
  };

  /// Null where the key is missing or null.
  [[nodiscard]] const Json* find(std::string_view key) const;
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key, Integers range);
  [[nodiscard]] std::optional<double> real(std::string_view key, Reals range);
  [[nodiscard]] std::optional<bool> boolean(std::string_view key);
  [[nodiscard]] std::optional<std::string> text(std::string_view key);

  void report(std::string_view key, std::string legal, std::string nearest, std::string message);
  /// A problem where a person typed the key, a note in a file. `nearest` is for problems.
  void unknown(std::string_view key, const std::function<std::string()>& nearest);

 private:
  const Json& keys_;
  std::string prefix_;
  const KeyOrigin& origin_;
};

}  // namespace trireme
