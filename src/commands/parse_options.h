#pragma once

#include <string>

#include "commands/commands.h"

namespace CLI {
class App;
}

namespace trireme {

/// Reads the arguments into what the options of `app` are bound to. False where help was asked for
/// (it is then on standard output, and the command has nothing more to do). Throws ConfigError for
/// every fault of usage.
bool parse_options(CLI::App& app, Arguments arguments);

}  // namespace trireme
