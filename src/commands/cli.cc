// The command line as a whole: which command, and what its end looks like.

#include <array>
#include <cstdio>
#include <exception>
#include <new>

#include "base/error.h"
#include "base/log.h"
#include "commands/commands.h"
#include "commands/ending.h"

namespace trireme {

namespace {

struct Command {
  std::string_view name, summary;
  int (*run)(Arguments);
};

constexpr std::array kCommands = {
    Command{"benchmark", "time the training step of a config on synthetic tokens",
            benchmark_command},
    Command{"plan", "check a config for any number of ranks and say what it needs", plan_command},
    Command{"schema", "print the JSON Schema of the config", schema_command},
    Command{"tokenizer", "train a byte-level BPE tokenizer", tokenizer_command},
    Command{"tokenize", "turn text into token files", tokenize_command},
    Command{"data", "show the samples that a run will see", data_command},
    Command{"evaluate", "compute the validation loss of a checkpoint", evaluate_command},
    Command{"generate", "continue a prompt", generate_command},
    Command{"export", "write a checkpoint as a Hugging Face directory", export_command},
    Command{"checkpoint", "list, verify or show checkpoints", checkpoint_command},
    Command{"schedule", "draw a pipeline schedule", schedule_command},
};

std::string help() {
  std::string text =
      "train: trains GPT, Llama and Qwen language models, on one core or on a cluster.\n\n"
      "  train CONFIG [MORE.json ...] [--set key.path=value ...]   train; resumes by itself\n";
  for (const Command& command : kCommands) {
    text +=
        fmt::format("  train {:<51} {}\n", fmt::format("{} ...", command.name), command.summary);
  }
  text +=
      "  train --version                                           version, libraries, CPU, MPI\n\n"
      "`train COMMAND --help` says more. Several ranks: scripts/run.sh -n N CONFIG, mpirun or srun "
      "--mpi=pmix.\n";
  return text;
}

int dispatch(Arguments arguments) {
  if (arguments.empty()) {
    std::fputs(help().c_str(), stderr);
    throw ConfigError("no config and no command was given");
  }
  const std::string& first = arguments.front();
  if (first == "--help" || first == "-h" || first == "help") {
    std::fputs(help().c_str(), stdout);
    return 0;
  }
  if (first == "--version") return version_command(arguments.subspan(1));
  for (const Command& command : kCommands) {
    if (command.name == first) return command.run(arguments.subspan(1));
  }
  return train_command(arguments);
}

int fail(ExitCode code, const char* what) {
  std::fflush(stdout);
  print_fault(static_cast<int>(code), what);
  return static_cast<int>(code);
}

}  // namespace

int run_command_line(Arguments arguments) {
  try {
    const int code = dispatch(arguments);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      throw DataError("standard output: cannot be written");
    log_info_text(closing_line(code));
    return code;
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
