#pragma once
// The commands of a shell script as the shell would start them, without running anything: for
// reading the arguments that a script gives to another program.
//
// Understood: comments, continued lines, quotes, NAME=value, NAME+=value, arrays, $NAME, ${NAME},
// ${NAME:-word}, ${NAME[@]}, $((arithmetic)), `if` with tests on known values, functions (their
// bodies as if called once where they stand), `eval` and `sh -c`, redirections, here-documents.
// Loops, `case`, and branches whose test depends on the machine are left out with a remark.

#include <string>
#include <string_view>
#include <vector>

namespace trireme {

struct ShellScript {
  using Words = std::vector<std::string>;
  std::vector<Words> commands;  ///< in order; no assignments, no redirections
  /// What variables held at the end, each an array, in order of first assignment.
  std::vector<Words> variables;
  std::vector<std::string> remarks;  ///< what could not be followed, with its line
};

/// In a word this marks what only the machine knows: a variable set nowhere, $1, $(command).
inline constexpr char kUnknownMark = '\x01';
/// The word as a person wrote it.
std::string without_marks(std::string_view word);

/// Throws ConfigError ("SOURCE: line N: ...") where the text is no script: binary, a quote or
/// bracket that is not closed, more than 4 MiB, expansions without end.
ShellScript read_shell(std::string_view text, std::string_view source);

}  // namespace trireme
