#include "commands/alone.h"

#include <cstdlib>

#include "base/error.h"
#include "comm/launch_variables.h"

namespace trireme {

void require_alone(std::string_view command, std::string_view instead) {
  const LaunchVariables launched =
      read_launch_variables([](const char* name) { return std::getenv(name); });
  if (launched.ranks <= 1) return;
  throw EnvironmentError("{}: is one process, and a launcher has started {} ({}). {}", command,
                         launched.ranks, launched.source, instead);
}

}  // namespace trireme
