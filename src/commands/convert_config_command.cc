#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>
#include <vector>

#include "base/log.h"
#include "commands/commands.h"
#include "commands/parse_options.h"
#include "commands/text_input.h"
#include "config/convert.h"

namespace trireme {

namespace {

constexpr std::size_t kBytesMax = std::size_t{4} << 20;

void tell(const char* heading, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  log_info_text(heading);
  for (const std::string& line : lines) log_info("  {}", line);
}

/// What cannot be read is at fault as what it says would be: it is the config.
std::string arguments_in(const std::string& file) {
  try {
    return read_text_input(file, kBytesMax);
  } catch (const DataError& error) {
    throw ConfigError("{}", error.what());
  }
}

}  // namespace

int convert_config_command(Arguments arguments) {
  std::string file, from;
  CLI::App app(
      "Prints our config for the arguments of Megatron-LM (a command line, or a script with it) or "
      "for DeepSpeed's JSON. What is not exact, has no counterpart or must be added is told on "
      "standard error.",
      "train convert-config");
  app.add_option("FILE", file, "what to convert; - is standard input")->required();
  app.add_option("--from", from, "megatron or deepspeed; default: JSON is DeepSpeed's")
      ->check(CLI::IsMember({"megatron", "deepspeed"}));
  if (!parse_options(app, arguments)) return 0;
  std::optional<ForeignSystem> system;
  if (!from.empty())
    system = from == "megatron" ? ForeignSystem::kMegatron : ForeignSystem::kDeepSpeed;
  const Conversion result =
      convert_config(arguments_in(file), file == "-" ? "standard input" : file, system);
  std::puts(result.config.dump(2).c_str());
  tell("Translated, but not exactly:", result.remarks);
  tell("Without meaning here:", result.nothing);
  tell("Not known, and left out:", result.unknown);
  tell("Better set:", result.unset);
  tell("To be added before it can train:", result.missing);
  return 0;
}

}  // namespace trireme
