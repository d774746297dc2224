#include "commands/parse_options.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/error.h"

namespace trireme {

bool parse_options(CLI::App& app, Arguments arguments) {
  try {
    // CLI11 takes them last first.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& fault) {
    throw ConfigError("{}: {}. See {} --help", app.get_name(), fault.what(), app.get_name());
  }
  return true;
}

}  // namespace trireme
