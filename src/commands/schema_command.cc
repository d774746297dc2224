#include <CLI/CLI.hpp>
#include <cstdio>

#include "commands/commands.h"
#include "commands/parse_options.h"
#include "config/schema.h"

namespace trireme {

int schema_command(Arguments arguments) {
  CLI::App app("Print the JSON Schema (draft-07) of the config, with other systems' names.",
               "train schema");
  if (!parse_options(app, arguments)) return 0;
  std::puts(config_schema().dump(2).c_str());
  return 0;
}

}  // namespace trireme
