#include "commands/parse_options.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/error.h"
#include "commands/command_table.h"

namespace trireme {

namespace {

std::string examples_of(Arguments arguments) {
  if (arguments.entry() == nullptr) return "";
  const auto& examples = arguments.entry()->examples;
  std::string text = examples.size() == 1 ? "\nExample:\n" : "\nExamples:\n";
  for (const std::string_view example : examples) text += fmt::format("  {}\n", example);
  return text;
}

}  // namespace

bool parse_options(CLI::App& app, Arguments arguments) {
  if (arguments.described() != nullptr) {
    *arguments.described() = describe(app);
    return false;
  }
  try {
    // CLI11 takes them last first.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    std::fputs((app.help() + examples_of(arguments)).c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& fault) {
    throw ConfigError("{}: {}. See {} --help", app.get_name(), fault.what(), app.get_name());
  }
  return true;
}

}  // namespace trireme
