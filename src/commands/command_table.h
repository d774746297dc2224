#pragma once
// The one list of commands. Dispatch, help, completion and the man page are made from it; what a
// command's options are, its own declaration for CLI11 says (`describe`), in no second list.

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "commands/commands.h"

namespace CLI {
class App;
}

namespace trireme {

struct CommandEntry {
  std::string_view name;     ///< "" for training, which is what happens without a command
  std::string_view summary;  ///< "continue a prompt"
  std::function<Ending(Arguments)> run;
  std::vector<std::string_view> examples;  ///< whole command lines, one at least
  /// Its processes are ranks of one job: what is wrong is reported once for all. Of other commands
  /// a launcher may start several that have nothing to do with each other.
  bool one_job = false;
};

/// Training first.
std::span<const CommandEntry> command_table();

/// nullptr where no command has that name.
const CommandEntry* find_command(std::string_view name);

/// An option, or a word that stands without one (positional).
struct OptionText {
  std::vector<std::string> names;  ///< {"-h", "--help"}; of a positional {"CONFIG"}
  bool positional = false, required = false, repeated = false;
  std::string value;  ///< "N", "FILE", "bf16|fp32"; "" of a flag
  std::vector<std::string>
      values;  ///< where only some are legal, or some have a meaning of their own
  std::string text;
  [[nodiscard]] bool takes(std::string_view what) const;  ///< whether `value` has this word
};

/// What help says of a command.
struct CommandText {
  std::string name, summary, text, footer;
  std::vector<std::string> examples;
  std::vector<OptionText> options;
  std::vector<CommandText> subcommands;
};

/// What CLI11 knows of an app; name, summary and examples are the table's. An option's type says
/// what completes it: FILE, DIR, PREFIX and the like, KEY=VALUE (a config key), {a,b,c}.
CommandText describe(const CLI::App& app);

/// Every row of the table.
std::vector<CommandText> command_texts();

/// "train plan", "train" for training.
std::string program_name(const CommandText& command);

}  // namespace trireme
