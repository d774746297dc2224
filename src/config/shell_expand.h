#pragma once
// Variables of a shell script, and what the shell makes of a word with them.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {

using ShellWords = std::vector<std::string>;

class ShellVariables {
 public:
  explicit ShellVariables(std::string_view source) : source_(source) {}

  /// nullptr where it is set nowhere: the environment may have it.
  [[nodiscard]] const ShellWords* find(std::string_view name) const;
  void set(std::string_view name, ShellWords value);
  /// To the text of the first element, or as further elements of an array.
  void append(std::string_view name, ShellWords value, bool array);
  void unset(std::string_view name);
  [[nodiscard]] const std::vector<std::pair<std::string, ShellWords>>& all() const { return all_; }

  /// The words that a raw word comes to. What only the machine knows stays as text behind
  /// kUnknownMark. Throws ConfigError where expansions have no end.
  [[nodiscard]] ShellWords expand(std::string_view raw);
  /// Without splitting: what NAME=raw assigns.
  [[nodiscard]] std::string expand_text(std::string_view raw);

 private:
  friend class ShellExpansion;
  std::string_view source_;
  std::vector<std::pair<std::string, ShellWords>> all_;  ///< in order of first assignment
  std::size_t produced_ = 0;                             ///< bytes of all expansions so far
  int depth_ = 0;
};

}  // namespace trireme
