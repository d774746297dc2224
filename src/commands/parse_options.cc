#include "commands/parse_options.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/error.h"
#include "commands/command_table.h"
#include "base/progress.h"

namespace trireme {

namespace {

std::string examples_of(Arguments arguments) {
  if (arguments.entry() == nullptr) return "";
  const auto& examples = arguments.entry()->examples;
  std::string text = examples.size() == 1 ? "\nExample:\n" : "\nExamples:\n";
  for (const std::string_view example : examples) text += fmt::format("  {}\n", example);
  return text;
}

/// What every command takes, behind its own options.
struct Shows {
  std::string progress = "auto", color = "auto";

  void add_to(CLI::App& app) {
    add(app, "--progress", progress, "bars of long work, else a line every 10 s");
    add(app, "--color", color, "colours on standard error");
    for (CLI::App* sub : app.get_subcommands({})) sub->fallthrough();
  }
  void apply() const {
    set_default_progress(parse_show(progress, "--progress"));
    set_colors(parse_show(color, "--color"));
  }

 private:
  static void add(CLI::App& app, const char* name, std::string& value, const char* text) {
    if (app.get_option_no_throw(name) != nullptr) return;
    app.add_option(name, value, text)
        ->check(CLI::IsMember({"auto", "always", "never"}))
        ->group("Everywhere");
  }
};

}  // namespace

bool parse_options(CLI::App& app, Arguments arguments) {
  Shows shows;
  shows.add_to(app);
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
  shows.apply();
  return true;
}

}  // namespace trireme
