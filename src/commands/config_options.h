#pragma once

#include "config/parse.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace trireme {

/// Of a CONFIG: that it is no override without its --set.
CLI::Validator config_file();

/// Whether a command can do without a config.
enum class ConfigIs : std::uint8_t { kRequired, kOptional };
/// Adds what every command with a config takes: CONFIG [MORE.json ...] [--set key.path=value ...].
void add_config_options(CLI::App& app, ConfigInput& input, ConfigIs is = ConfigIs::kRequired);

/// run.hang_timeout_seconds, for a LaunchGuard; throws what reading the config throws.
double hang_timeout_of(const ConfigInput& input);

/// For commands without a config: --hang-timeout SECONDS.
void add_hang_timeout(CLI::App& app, double& seconds);

/// For commands that take a checkpoint: --base DIR.
void add_base(CLI::App& app, std::string& base);

}  // namespace trireme
