// The command line as a whole: which command, and what its end looks like.

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/nearest_word.h"
#include "base/program_files.h"
#include "commands/command_table.h"
#include "commands/ending.h"
#include "commands/every_rank.h"
#include "config/problem.h"

namespace trireme {

namespace {

std::string help() {
  std::string text =
      "train: trains GPT, Llama, Mistral, Qwen and SmolLM language models, on one core or on a "
      "cluster.\n\n"
      "  train CONFIG [MORE.json ...] [--set key.path=value ...]   train; resumes by itself\n";
  for (const CommandEntry& command : command_table().subspan(1)) {
    text +=
        fmt::format("  train {:<51} {}\n", fmt::format("{} ...", command.name), command.summary);
  }
  text +=
      "  train --version                                           version, libraries, CPU, MPI\n\n"
      "Examples:\n";
  for (const std::string_view example : command_table().front().examples)
    text += fmt::format("  {}\n", example);
  text += fmt::format(
      "\n`train COMMAND --help` says more. Several ranks: {} -n N CONFIG, mpirun or "
      "srun --mpi=pmix.\n",
      program_file_to_type("scripts/run.sh"));
  return text;
}

// What people call our commands.
constexpr std::array<std::array<std::string_view, 2>, 16> kOtherWords = {{
    {"bench", "benchmark"},
    {"chat", "generate"},
    {"ckpt", "checkpoint"},
    {"complete", "generate"},
    {"eval", "evaluate"},
    {"encode", "tokenize"},
    {"infer", "generate"},
    {"inference", "generate"},
    {"perplexity", "evaluate"},
    {"pretokenize", "tokenize"},
    {"preprocess", "tokenize"},
    {"sample", "generate"},
    {"samples", "data"},
    {"test", "evaluate"},
    {"validate", "evaluate"},
    {"verify", "checkpoint"},
}};

/// Refuses a first word that is neither command nor config; what looks like a path is a config.
void refuse_word(const std::string& word) {
  if (word.starts_with('-') || word.find_first_of("./=") != std::string::npos || is_there(word))
    return;
  if (word == "train" || word == "run" || word == "resume" || word == "pretrain")
    throw ConfigError("{}: is no command; a config follows at once: `train CONFIG`", word);
  if (word == "version") throw ConfigError("version: is no command. Nearest: `train --version`");
  std::vector<std::string> names;
  for (const CommandEntry& command : command_table().subspan(1)) names.emplace_back(command.name);
  std::optional<std::string> near;
  for (const auto& [other, own] : kOtherWords) {
    if (other == word) near = std::string(own);
  }
  if (!near) near = nearest_word(word, names);
  throw ConfigError("{}: is neither a command nor a file{}. `train --help` names the commands",
                    word, near ? fmt::format(". Nearest command: {}", *near) : "");
}

/// `--progress W` and `--color W` may stand before the command: there they go to its end.
std::vector<std::string> command_first(std::span<const std::string> arguments) {
  std::vector<std::string> words(arguments.begin(), arguments.end());
  std::size_t leading = 0;
  while (leading < words.size()) {
    const std::string_view word = words[leading];
    if (word == "--progress" || word == "--color") {
      leading = std::min(leading + 2, words.size());
    } else if (word.starts_with("--progress=") || word.starts_with("--color=")) {
      ++leading;
    } else {
      break;
    }
  }
  std::rotate(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(leading), words.end());
  return words;
}

/// A word that is no command begins the arguments of training.
Ending run_named(const CommandEntry* command, std::span<const std::string> arguments) {
  if (command != nullptr) return command->run(Arguments(arguments.subspan(1), command));
  if (arguments.empty()) throw ConfigError("no config and no command was given.\n\n{}", help());
  refuse_word(arguments.front());
  return train_command(Arguments(arguments, &command_table().front()));
}

Ending dispatch(std::span<const std::string> given) {
  const std::vector<std::string> words = command_first(given);
  const std::span<const std::string> arguments(words);
  const std::string first = arguments.empty() ? "" : arguments.front();
  if (first == "help" && arguments.size() > 1) {  // `train help plan` is `train plan --help`
    std::vector<std::string> asked(arguments.begin() + 1, arguments.end());
    asked.emplace_back("--help");
    return dispatch(asked);
  }
  if (first == "--help" || first == "-h" || first == "help") {
    std::fputs(help().c_str(), stdout);
    return 0;
  }
  if (first == "--version") return version_command(Arguments(arguments.subspan(1)));
  const CommandEntry* command = first.empty() ? nullptr : find_command(first);
  try {
    return run_named(command, arguments);
  } catch (const Error& error) {
    // Behind the beginning of MPI the ranks have agreed on it.
    if (Launch::has_begun() || (command != nullptr && !command->one_job)) throw;
    return fail_on_every_rank(error);
  }
}

int fail(ExitCode code, const char* what) {
  std::fflush(stdout);
  print_fault(static_cast<int>(code), what);
  return static_cast<int>(code);
}

}  // namespace

int run_command_line(std::span<const std::string> arguments) {
  try {
    const Ending ending = dispatch(arguments);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      throw DataError("standard output: cannot be written");
    log_info_text(closing_line(ending));
    return ending.code;
  } catch (const Error& error) {
    return fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::kEnvironment,
                "out of memory. Use a smaller batch or fewer ranks on this machine.");
  } catch (const std::exception& error) {
    return fail(ExitCode::kInternal, error.what());
  }
}

}  // namespace trireme
