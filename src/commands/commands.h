#pragma once
// One function for each command: its own arguments (without the command's name) to an exit code.
// They throw Error.

#include <span>
#include <string>

namespace trireme {

using Arguments = std::span<const std::string>;

int train_command(Arguments arguments);       // train_command.cc
int benchmark_command(Arguments arguments);   // benchmark_command.cc
int plan_command(Arguments arguments);        // plan_command.cc
int schema_command(Arguments arguments);      // schema_command.cc
int tokenizer_command(Arguments arguments);   // tokenizer_command.cc
int tokenize_command(Arguments arguments);    // tokenize_command.cc
int data_command(Arguments arguments);        // data_command.cc
int evaluate_command(Arguments arguments);    // evaluate_command.cc
int generate_command(Arguments arguments);    // generate_command.cc
int export_command(Arguments arguments);      // export_command.cc
int checkpoint_command(Arguments arguments);  // checkpoint_command.cc
int schedule_command(Arguments arguments);    // schedule_command.cc
int version_command(Arguments arguments);     // version_command.cc

/// Finds the command that `arguments` (all of argv but the program) name and runs it; a first word
/// that is no command is a config to train. Catches everything: prints the fault, then "train: exit
/// N (reason)" as the last line, and ends the other ranks where this one failed. Returns the exit
/// code.
int run_command_line(Arguments arguments);

}  // namespace trireme
