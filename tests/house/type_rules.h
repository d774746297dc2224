#pragma once
// Names of types, of which a program has one each: two classes of one name share their destructor
// and their table of virtual functions, and no linker says so.

#include <span>
#include <string>
#include <vector>

#include "house/house_rules.h"

namespace trireme::house {

struct TypeName {
  std::string name;  ///< "trireme::cuda::Table"
  int line;          ///< from 1
};

/// Classes, unions and enumerations that are defined at the level of namespaces with a name, in
/// order; specialisations and members apart.
std::vector<TypeName> types_of(std::string_view source);

/// No two files define a type of the same name; but a library's types, in the global namespace,
/// where programs stand in for it.
Faults type_faults(std::span<const SourceFile> program);

}  // namespace trireme::house
