#include "commands/config_options.h"

#include <CLI/CLI.hpp>

namespace trireme {

void add_config_options(CLI::App& app, ConfigInput& input) {
  app.add_option("CONFIG", input.files, "config files; later ones win, objects merge, null removes")
      ->required();
  app.add_option("--set", input.overrides,
                 "key.path=value: one override, laid over the files; may be repeated")
      ->allow_extra_args(false);
}

}  // namespace trireme
