#include <CLI/CLI.hpp>

#include "base/error.h"
#include "commands/commands.h"
#include "commands/parse_options.h"

namespace trireme {

int schedule_command(Arguments arguments) {
  CLI::App app("Draw a pipeline schedule. Not in this version: there is one pipeline stage.",
               "train schedule");
  app.allow_extras();
  if (!parse_options(app, arguments)) return 0;
  throw ConfigError("train schedule: not in this version (one pipeline stage needs no schedule)");
}

}  // namespace trireme
