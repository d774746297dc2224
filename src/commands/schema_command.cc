#include <cstdio>

#include "base/error.h"
#include "commands/commands.h"
#include "config/schema.h"

namespace trireme {

int schema_command(Arguments arguments) {
  if (!arguments.empty())
    throw ConfigError("train schema takes no arguments, found {}", arguments.front());
  std::puts(config_schema().dump(2).c_str());
  return 0;
}

}  // namespace trireme
