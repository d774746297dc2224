#pragma once
// The man page, as troff's man macros.

#include <string>
#include <vector>

#include "commands/command_table.h"

namespace trireme {

std::string man_page(const std::vector<CommandText>& commands);

}  // namespace trireme
