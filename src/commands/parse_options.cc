#include "commands/parse_options.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "base/nearest_word.h"
#include "base/progress.h"
#include "base/units.h"
#include "commands/command_table.h"
#include "config/aliases.h"
#include "config/fields.h"
#include "config/problem.h"

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
        ->check(one_of({"auto", "always", "never"}))
        ->group("Everywhere");
  }
};

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

bool has_config(const CLI::App& app) {
  const auto names = option_names(app);
  return std::find(names.begin(), names.end(), "--set") != names.end();
}

/// What to type in place of an option that the command does not have; "" where that is not known.
std::string advice_on(const CLI::App& app, const std::string& option, const std::string& value) {
  const std::string name = option.substr(0, option.find('='));
  const std::string shown = value.empty() ? "VALUE" : value;
  if (name == "--config" || name == "-c" || name == "--config-file" || name == "--config_file")
    return fmt::format("A config stands without an option: `{} {}`", app.get_name(),
                       value.empty() ? "CONFIG" : value);
  if (name == "-n" || name == "-np" || name == "--nproc_per_node" || name == "--nproc-per-node")
    return fmt::format("Several ranks are started by `scripts/run.sh -n {} CONFIG`",
                       value.empty() ? "N" : value);
  const std::string key = has_config(app) ? known_key(name) : "";
  if (find_field(key) != nullptr || key.starts_with("model."))
    return fmt::format("A config key is set by `--set {}={}`", key, shown);
  if (const auto near = nearest_word(name, option_names(app)))
    return fmt::format("Nearest: {}", *near);
  return "";
}

/// The value behind an option, or behind its '='.
std::string value_of(Arguments arguments, const std::string& option) {
  if (const auto equals = option.find('='); equals != std::string::npos)
    return option.substr(equals + 1);
  const auto at = std::find(arguments.begin(), arguments.end(), option);
  if (at == arguments.end() || at + 1 == arguments.end() || (at + 1)->starts_with("--")) return "";
  return *(at + 1);
}

[[noreturn]] void refuse_surplus(const CLI::App& app, Arguments arguments) {
  const std::vector<std::string> surplus = app.remaining(true);
  const std::string first = surplus.empty() ? "" : surplus.front();
  const bool option = first.starts_with('-') && first.size() > 1;
  std::string advice;
  if (option) {
    advice = advice_on(app, first, value_of(arguments, first));
  } else if (first.find('=') != std::string::npos && has_config(app)) {
    advice = fmt::format("A config key is set by `--set {}`", first);
  }
  throw ConfigError("{}: {} {}{}. See {} --help", app.get_name(), first,
                    option ? "is no option of this command" : "was not expected",
                    advice.empty() ? "" : ". " + advice, app.get_name());
}

std::string fault(const std::string& found, const std::string& legal) {
  return fmt::format("found {}; legal: {}", Json(found).dump(), legal);
}

/// Every option that takes a path, by the name of its type, has one where it is given.
void refuse_empty_paths(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    const bool path = type.find("FILE") != std::string::npos || type == "DIR" || type == "PREFIX";
    if (!path || option->count() == 0) continue;
    for (const std::string& value : option->results()) {
      if (!value.empty()) continue;
      throw ConfigError("{}: {}: found \"\"; legal: a {}. See {} --help", app.get_name(),
                        option->get_name(), type, app.get_name());
    }
  }
}

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
  } catch (const CLI::ExtrasError&) {
    refuse_surplus(app, arguments);
  } catch (const CLI::ParseError& fault) {
    // An option that is none may be why something else is missing.
    if (!app.remaining(true).empty()) refuse_surplus(app, arguments);
    throw ConfigError("{}: {}. See {} --help", app.get_name(), fault.what(), app.get_name());
  }
  shows.apply();
  refuse_empty_paths(app);
  return true;
}

CLI::Validator integer_from(std::int64_t least, std::int64_t most) {
  return CLI::Validator(
      [least, most](std::string& text) {
        std::int64_t value = 0;
        bool whole = CLI::detail::lexical_cast(text, value);
        if (const auto count = whole ? std::nullopt : parse_count(text)) {
          whole = true;
          value = *count;
          text = std::to_string(value);
        }
        if (whole && value >= least && value <= most) return std::string();
        if (most == std::numeric_limits<std::int64_t>::max())
          return fault(text, fmt::format("an integer of at least {}", least));
        return fault(text, fmt::format("an integer from {} to {}", least, most));
      },
      "");
}

CLI::Validator number_from(double least, double most) {
  return CLI::Validator(
      [least, most](std::string& text) {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value >= least && value <= most &&
            std::isfinite(value))
          return std::string();
        return fault(text, std::isfinite(most) ? fmt::format("a number from {} to {}", least, most)
                                               : fmt::format("a number of at least {}", least));
      },
      "");
}

CLI::Validator number_above(double bound) {
  return CLI::Validator(
      [bound](std::string& text) {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value > bound && std::isfinite(value))
          return std::string();
        return fault(text, fmt::format("a number above {}", bound));
      },
      "");
}

CLI::Validator one_of(std::vector<std::string> words) {
  const std::string shown =
      fmt::format("{{{}}}", fmt::join(words, ","));  // help and completion read it
  return CLI::Validator(
      [words](std::string& text) {
        if (std::find(words.begin(), words.end(), text) != words.end()) return std::string();
        std::string legal;
        for (const std::string& word : words) legal.append(legal.empty() ? "" : ", ").append(word);
        return fault(text, legal + nearest_text(text, words));
      },
      shown);
}

std::string nearest_text(const std::string& word, const std::vector<std::string>& words) {
  const auto near = nearest_word(word, words);
  return near ? "; nearest: " + *near : "";
}

}  // namespace trireme
