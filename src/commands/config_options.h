#pragma once

#include "config/parse.h"

namespace CLI {
class App;
}

namespace trireme {

/// Adds what every command with a config takes: CONFIG [MORE.json ...] [--set key.path=value ...].
void add_config_options(CLI::App& app, ConfigInput& input);

}  // namespace trireme
