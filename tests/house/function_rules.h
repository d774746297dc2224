#pragma once
// The size of functions, as CONTRIBUTING.md bounds it.

#include <string>
#include <vector>

#include "house/house_rules.h"

namespace trireme::house {

struct Function {
  enum class Kind { kHost, kDevice, kTest };

  std::string name;  ///< "Scanner::run" where it is defined so, "TEST(Suite, name)" of a test
  int line;          ///< of the name, from 1
  int lines;         ///< from the name to the closing brace; 0: a declaration
  int parameters;
  Kind kind;
};

/// Functions defined at the level of namespaces and classes, and functions declared there, in
/// order. A lambda or a local class belongs to the function around it; what a macro makes is not
/// seen.
std::vector<Function> functions_of(std::string_view source);

/// At most 70 lines, 120 of a kernel or a device function and of the body of a test; at most six
/// parameters, eight of a device function, whose sums in registers go by themselves; also where a
/// function is only declared. Tables and what others declare are listed by name in the source.
Faults function_faults(const SourceFile& file);

}  // namespace trireme::house
