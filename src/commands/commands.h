#pragma once
// One function for each command: its arguments (without its name) to an exit code or ending.

#include <span>
#include <string>
#include <vector>

#include "commands/ending.h"

namespace trireme {

struct CommandEntry;
struct CommandText;

/// The words that a command gets, and which row of the table it was called by.
class Arguments : public std::span<const std::string> {
 public:
  /// `described`: parse_options fills it in and parses nothing; the command then does nothing more.
  Arguments(std::span<const std::string> words, const CommandEntry* entry = nullptr,
            CommandText* described = nullptr)
      : span(words), entry_(entry), described_(described) {}
  Arguments(const std::vector<std::string>& words) : span(words) {}
  [[nodiscard]] const CommandEntry* entry() const { return entry_; }
  [[nodiscard]] CommandText* described() const { return described_; }

 private:
  const CommandEntry* entry_ = nullptr;
  CommandText* described_ = nullptr;
};

Ending train_command(Arguments arguments);      // train_command.cc
int benchmark_command(Arguments arguments);     // benchmark_command.cc
int plan_command(Arguments arguments);          // plan_command.cc
Ending preflight_command(Arguments arguments);  // preflight_command.cc
int compare_command(Arguments arguments);       // compare_command.cc
int average_command(Arguments arguments);       // average_command.cc
int sweep_command(Arguments arguments);         // sweep_command.cc
int schema_command(Arguments arguments);        // schema_command.cc
int tokenizer_command(Arguments arguments);     // tokenizer_command.cc
int tokenize_command(Arguments arguments);      // tokenize_command.cc
int data_command(Arguments arguments);          // data_command.cc
int evaluate_command(Arguments arguments);      // evaluate_command.cc
int generate_command(Arguments arguments);      // generate_command.cc
int export_command(Arguments arguments);        // export_command.cc
int checkpoint_command(Arguments arguments);    // checkpoint_command.cc
int schedule_command(Arguments arguments);      // schedule_command.cc
int completion_command(Arguments arguments);    // completion_command.cc
int man_command(Arguments arguments);           // man_command.cc
int convert_config_command(Arguments arguments);
int version_command(Arguments arguments);  // version_command.cc

/// Finds the command that `arguments` (all of argv but the program) name and runs it; a first word
/// that is no command is a config to train. Catches everything: prints the fault, then "train: exit
/// N (reason)" as the last line, and ends the other ranks. Returns the exit code.
int run_command_line(std::span<const std::string> arguments);

}  // namespace trireme
