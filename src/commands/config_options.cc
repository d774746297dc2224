#include "commands/config_options.h"

#include <CLI/CLI.hpp>
#include <filesystem>

#include "base/file.h"
#include "commands/parse_options.h"

namespace trireme {

CLI::Validator config_file() {
  return CLI::Validator(
      [](std::string& text) {
        if (text.find('=') == std::string::npos || is_there(text)) return std::string();
        return fmt::format("{} is no file; a config key is set by `--set {}`", text, text);
      },
      "");
}

void add_config_options(CLI::App& app, ConfigInput& input, ConfigIs is) {
  app.add_option("CONFIG", input.files,
                 "config files, or a run's folder; later ones win, objects merge, null removes")
      ->required(is == ConfigIs::kRequired)
      ->check(config_file());
  app.add_option("--set", input.overrides,
                 "key.path=value: one override, laid over the files; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

double hang_timeout_of(const ConfigInput& input) {
  return read_run_config(input).config.run.hang_timeout_seconds;
}

void add_hang_timeout(CLI::App& app, double& seconds) {
  app.add_option("--hang-timeout", seconds,
                 "SECONDS without progress after which several ranks end with 124, as "
                 "run.hang_timeout_seconds; 0: chosen")
      ->type_name("SECONDS")
      ->check(number_from(0));
}

void add_base(CLI::App& app, std::string& base) {
  app.add_option("--base", base,
                 "of adapters: the weights that they stand beside, where these are no longer where "
                 "the run found them")
      ->type_name("DIR");
}

}  // namespace trireme
