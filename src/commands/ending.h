#pragma once
// What the program says when it ends.

#include <string>

namespace trireme {

/// "train: exit 2 (config or command line)": the last line of the program.
std::string closing_line(int code);

/// Prints what went wrong, then the closing line.
void print_fault(int code, const char* what);

}  // namespace trireme
