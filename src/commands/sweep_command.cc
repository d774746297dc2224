#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/program_files.h"
#include "commands/every_rank.h"
#include "commands/parse_options.h"
#include "commands/signal_relay.h"
#include "commands/sweep_slurm.h"
#include "config/combinations.h"
#include "telemetry/run_comparison.h"
#include "train/inputs.h"
#include "train/prepare.h"

namespace trireme {

namespace {

struct Options {
  ConfigInput input;  ///< its overrides are the options, values not cut yet
  std::int64_t ranks = 1;
  bool slurm = false;
};

struct SweepRun {
  std::string name;
  std::filesystem::path directory;
  ConfigInput input;       ///< run.directory among its overrides
  std::int64_t steps = 0;  ///< that it has when it is finished; 0: not known before
  std::int64_t exit_at_step = 0;
};

struct Sweep {
  std::filesystem::path folder;  ///< run.directory of the config
  std::vector<SweepRun> runs;
};

/// What is wrong with one run; its `steps` where nothing is.
std::optional<Error> fault_of(SweepRun& run, std::int64_t ranks) {
  try {
    std::vector<std::string> notes;  // the run itself prints them
    const PreparedRun prepared =
        check_run(read_config_with_model(run.input), Needs::kTraining, ranks, notes);
    run.steps = prepared.run.steps;
    run.exit_at_step = prepared.config.run.exit_at_step.value_or(0);
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

/// Every run as `train plan` would, before the first starts.
void check(Sweep& sweep, std::int64_t ranks, SignalRelay& relay) {
  constexpr std::size_t kTold = 5;
  std::vector<std::string> told;
  std::size_t faults = 0;
  std::optional<ExitCode> code;
  for (SweepRun& run : sweep.runs) {
    if (relay.stopped())
      throw Error(ExitCode::kRequeue, "train sweep: asked to stop before a run began");
    const std::optional<Error> fault = fault_of(run, ranks);
    if (!fault) continue;
    if (!code) code = fault->code();
    if (++faults <= kTold) told.push_back(fmt::format("{}: {}", run.name, fault->what()));
  }
  if (!code) return;
  if (faults > kTold) told.push_back(fmt::format("... and {} more", faults - kTold));
  const char* separator = *code == ExitCode::kData ? " " : "\n";  // a fault of a file is one line
  throw Error(*code, fmt::format("{} of {} runs cannot start, so none is started:{}{}", faults,
                                 sweep.runs.size(), separator, fmt::join(told, separator)));
}

Sweep plan_sweep(const Options& options, SignalRelay& relay) {
  std::vector<std::string> directory;  // one override, or none
  std::vector<SweptKey> keys;
  for (const std::string& text : options.input.overrides) {
    SweptKey key = parse_swept_key(text);
    if (key.key != "run.directory") {
      keys.push_back(std::move(key));
    } else if (key.values.size() == 1 && directory.empty()) {
      directory.push_back(text);
    } else {
      throw ConfigError(
          "--set {}: a sweep has one run.directory; the folders of its runs are made in it", text);
    }
  }
  if (keys.empty())
    throw ConfigError("train sweep: no key to vary. Give --set key.path=A,B,C once or more");
  Sweep sweep;
  for (const Combination& combination : combinations_of(keys)) {
    SweepRun run{combination.name, {}, {options.input.files, combination.overrides}, 0};
    if (sweep.runs.empty()) {
      ConfigInput in_common = run.input;
      in_common.overrides.insert(in_common.overrides.end(), directory.begin(), directory.end());
      const LoadedConfig loaded = read_run_config(in_common);
      throw_problems(loaded.problems);
      sweep.folder = loaded.config.run.directory;
    }
    run.directory = sweep.folder / run.name;
    run.input.overrides.push_back("run.directory=" + run.directory.string());
    sweep.runs.push_back(std::move(run));
  }
  check(sweep, options.ranks, relay);
  return sweep;
}

std::filesystem::path program_path() { return std::filesystem::read_symlink("/proc/self/exe"); }

/// TRIREME_ROOT/scripts where set, as slurm.sbatch has it, else those that came with this program.
std::filesystem::path scripts_folder() {
  const char* root = std::getenv("TRIREME_ROOT");
  if (root == nullptr || *root == '\0') {
    const std::filesystem::path script = find_program_file("scripts/run.sh");
    if (!script.empty()) return script.parent_path();
    throw EnvironmentError(
        "train sweep: scripts/run.sh, which starts the runs, is neither installed beside this "
        "program nor in the tree that it was built from. Set TRIREME_ROOT to a checkout");
  }
  const std::filesystem::path scripts = std::filesystem::absolute(root) / "scripts";
  if (is_there(scripts / "run.sh")) return scripts;
  throw EnvironmentError("TRIREME_ROOT: {} has no run.sh", scripts.string());
}

std::optional<RunSummary> summary_of(const SweepRun& run) {
  try {
    return summarize_run(run.directory);
  } catch (const DataError&) {  // not begun
    return std::nullopt;
  }
}

bool finished(const SweepRun& run) {
  const std::optional<RunSummary> summary = summary_of(run);
  if (!summary) return false;
  const std::string& reason = summary->end_reason;
  const std::int64_t steps = summary->steps.value_or(0);
  return reason == "early_stop" || (reason == "exit_at_step" && steps == run.exit_at_step) ||
         (reason == "steps" && steps >= run.steps);
}

/// The words behind `train`.
std::vector<std::string> words_of(const SweepRun& run) {
  std::vector<std::string> words(run.input.files.begin(), run.input.files.end());
  for (const std::string& override_text : run.input.overrides) {
    words.emplace_back("--set");
    words.push_back(override_text);
  }
  return words;
}

void print_table(const Sweep& sweep) {
  Comparison comparison;
  for (const SweepRun& run : sweep.runs) {
    RunSummary none;
    none.directory = run.directory.string();
    comparison.runs.push_back(summary_of(run).value_or(none));
  }
  std::fputs(summaries_text(comparison).c_str(), stdout);
}

int run_here(const Sweep& sweep, std::int64_t ranks, SignalRelay& relay) {
  const std::filesystem::path script = scripts_folder() / "run.sh";
  ::setenv("TRIREME_TRAIN", program_path().c_str(), 1);
  int first_fault = 0;
  for (std::size_t i = 0; i < sweep.runs.size() && !relay.stopped(); ++i) {
    const SweepRun& run = sweep.runs[i];
    const std::string place = fmt::format("run {} of {}, {}", i + 1, sweep.runs.size(), run.name);
    if (finished(run)) {
      log_info("{}: is finished", place);
      continue;
    }
    log_info("{}: begins in {}", place, run.directory.string());
    std::vector<std::string> words = {script.string(), "-n", std::to_string(ranks)};
    const std::vector<std::string> config = words_of(run);
    words.insert(words.end(), config.begin(), config.end());
    const int code = relay.run(words);
    log_info("{}: ended with {}{}", place, code,
             code != 0 && !relay.stopped() ? "; the sweep goes on" : "");
    if (first_fault == 0) first_fault = code;
  }
  print_table(sweep);
  if (!relay.stopped()) return first_fault;
  log_info("the sweep was asked to stop. The same command goes on where it was");
  return static_cast<int>(ExitCode::kRequeue);
}

bool on_path(std::string_view program) {
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const std::size_t colon = std::min(rest.find(':'), rest.size());
    if (is_there(std::filesystem::path(rest.substr(0, colon)) / program)) return true;
    rest.remove_prefix(std::min(colon + 1, rest.size()));
  }
  return false;
}

int submit(const Sweep& sweep, std::int64_t ranks, SignalRelay& relay) {
  ArrayJob job{sweep.folder, scripts_folder(), program_path(), ranks, {}};
  for (const SweepRun& run : sweep.runs) {
    if (!finished(run)) job.runs.push_back(words_of(run));
  }
  if (job.runs.empty()) {
    log_info("all {} runs are finished", sweep.runs.size());
    print_table(sweep);
    return 0;
  }
  const std::filesystem::path script = write_array_script(job);
  std::puts(script.c_str());
  std::fflush(stdout);
  if (!on_path("sbatch")) {
    log_info("no sbatch on this host: submit it with `sbatch {}` where one is", script.string());
    return 0;
  }
  const int code = relay.run({"sbatch", script.string()});
  if (code != 0)
    throw EnvironmentError("sbatch {}: ended with {}; its message stands above", script.string(),
                           code);
  log_info("when they are done: train compare {}/*=*", sweep.folder.string());
  return 0;
}

}  // namespace

int sweep_command(Arguments arguments) {
  Options options;
  CLI::App app(
      "Trains all combinations of the values of some keys, one after the other, each by "
      "scripts/run.sh. What is finished "
      "is skipped, what was begun resumes, a failure does not end the others.",
      "train sweep");
  app.add_option("CONFIG", options.input.files,
                 "config files; later ones win, objects merge, null removes")
      ->required();
  app.add_option("--set", options.input.overrides,
                 "key.path=A,B,C: the values of one key; may be repeated. A value with commas of "
                 "its own stands in quotes or brackets")
      ->type_name("KEY=VALUE")
      ->required()
      ->allow_extra_args(false);
  app.add_option("--ranks", options.ranks, "ranks of each run; default 1")
      ->check(CLI::Range(1, 999999));
  app.add_flag("--slurm", options.slurm,
               "write a job array (run.directory/sweep.sbatch) and submit it by sbatch");
  app.footer(
      "The runs stand in run.directory, in folders such as optimizer.lr=1e-4,run.seed=2 (a / is "
      "written %2F). All are\n"
      "checked before the first starts. The exit code is the first that is not 0; after a Ctrl-C "
      "the current run saves\n"
      "and the sweep ends with 75. Ended or not, `train compare` sets the runs side by side.");
  if (!parse_options(app, arguments)) return 0;
  require_alone("train sweep",
                "Start it without one: it starts its runs itself, each on --ranks N.");
  SignalRelay relay;
  const Sweep sweep = plan_sweep(options, relay);
  return options.slurm ? submit(sweep, options.ranks, relay)
                       : run_here(sweep, options.ranks, relay);
}

}  // namespace trireme
