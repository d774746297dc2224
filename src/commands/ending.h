#pragma once
// What the program says when it ends.

#include <string>
#include <utility>

namespace trireme {

struct Ending {
  Ending(int exit_code, std::string why = "")  // NOLINT(google-explicit-constructor)
      : code(exit_code), reason(std::move(why)) {}
  int code;
  std::string reason;  ///< "": what the code means
};

/// "train: exit 2 (config or command line)": the last line of the program.
std::string closing_line(const Ending& ending);

/// Prints what went wrong, then the closing line.
void print_fault(int code, const char* what);

}  // namespace trireme
