#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/human_format.h"
#include "base/log.h"
#include "base/stop_flag.h"
#include "checkpoint/manifest.h"
#include "commands/commands.h"
#include "commands/config_options.h"
#include "commands/every_rank.h"
#include "commands/parse_options.h"
#include "guard/watch.h"
#include "store/host_state.h"
#include "telemetry/metrics_lines.h"
#include "train/evaluator.h"
#include "train/memory_check.h"
#include "train/model_source.h"
#include "train/rank_placement.h"
#include "train/run_data.h"
#include "train/run_kernels.h"
#include "train/standalone_evaluation.h"

namespace trireme {

namespace {

struct Options {
  ConfigInput input;
  std::string checkpoint, base;
  StandaloneEvaluation alone;
  bool json = false, averages = false;

  [[nodiscard]] bool has_config() const { return !input.files.empty(); }
};

void print(const EvaluationResult& result, const std::string& name, const ModelSource& source,
           bool json) {
  EvaluationLine line;
  if (source.is_checkpoint()) line.step = read_manifest(source.path()).step;
  line.loss = result.loss;
  line.perplexity = result.perplexity();
  line.tokens = result.tokens;
  line.name = name;
  if (json) {
    std::puts(to_json(line).dump().c_str());
  } else {
    std::printf("validation loss %s%.6f, perplexity %.4f, %lld tokens (%s)\n",
                name.empty() ? "" : ("of " + name + " ").c_str(), line.loss, line.perplexity,
                static_cast<long long>(line.tokens), source.path().c_str());
  }
}

/// Without a config: what is about to be computed.
void tell(const PreparedRun& prepared, const std::vector<ValidationSet>& sets,
          const Runtime& runtime) {
  log_info("{} of {} tokens, in {}", counted(sets.front().batches->samples(), "window"),
           format_integer(prepared.config.data.sequence_length), name_of(runtime.store.compute()));
}

struct Work {
  Launch& launch;
  Watch& watch;
  const ModelSource& source;
  const PreparedRun& prepared;
  const Placement& placement;
  const Options& options;
};

/// From the memory that it takes to what is printed.
void evaluate_from(const Work& work) {
  Launch& launch = work.launch;
  const ModelSource& source = work.source;
  const PreparedRun& prepared = work.prepared;
  const Options& options = work.options;
  Communicator& replica = launch.replica();
  Runtime runtime(launch, prepared.config, prepared.run,
                  runtime_options(prepared, launch, work.placement, StagePurpose::kEvaluation));
  const Watchdog::Following following(work.watch.watchdog(), runtime.trace);
  HostState host(runtime.context, runtime.store.state());
  source.load(host.state(), replica);
  host.store();
  runtime.weights_changed(Runtime::Copies::kStale);
  const std::vector<ValidationSet> sets = open_validation(prepared, runtime);
  if (!options.has_config()) tell(prepared, sets, runtime);
  RunKernels kernels(runtime, source.is_checkpoint() ? source.path() : "");
  kernels.measure([&] { rehearse_evaluation(runtime, *sets.front().batches); });
  for (const ValidationSet& set : sets) {
    const EvaluationResult result = evaluate(runtime, *set.batches, [&] {
      run_together(replica, [] { give_up_if_stopped("train evaluate"); });
    });
    if (replica.rank() == 0) print(result, set.name, source, options.json);
  }
}

int run(Launch& launch, LaunchGuard& guard, const Options& options) {
  Communicator& job = launch.job();
  PreparedRun prepared;
  if (options.has_config()) prepared = prepare_run(options.input, Needs::kEvaluation, launch);
  Watch watch(launch, &guard,
              options.has_config() ? prepared.config.run.hang_timeout_seconds
                                   : options.alone.hang_timeout_seconds);
  const ModelSource source(
      options.checkpoint.empty() ? prepared.config.run.directory : options.checkpoint, job,
      options.base, options.averages ? WeightSet::kAveraged : WeightSet::kLast);
  if (!options.has_config()) prepared = prepare_evaluation(options.alone, source, launch);
  take_model(prepared, source.model());
  launch.check_collectives(prepared.config.run.check_collectives);
  const Placement placement = bind_to_cores(prepared.config, launch);
  reporting_memory(
      launch,
      words_of(launch, memory_need(prepared, launch, placement.device, StagePurpose::kEvaluation)),
      [&] {
        evaluate_from({launch, watch, source, prepared, placement, options});
      });
  return 0;
}

}  // namespace

namespace {

void declare(CLI::App& app, Options& options) {
  add_config_options(app, options.input, ConfigIs::kOptional);
  app.add_option("--checkpoint", options.checkpoint,
                 "step folder, checkpoints folder, run folder, Hugging Face directory or folder of "
                 "peft's; default: run.directory")
      ->type_name("DIR");
  add_base(app, options.base);
  app.add_flag("--ema", options.averages, "of a run's averages of the weights (optimizer.ema)");
  app.add_flag("--json", options.json,
               "print the evaluation objects of metrics.jsonl, a line each");
  const char* group = "Without a CONFIG";
  StandaloneEvaluation& alone = options.alone;
  app.add_option(
         "--data", alone.data,
         "PREFIX of PREFIX.bin and PREFIX.idx: evaluate --checkpoint on all its windows, the "
         "last partial one dropped")
      ->type_name("PREFIX")
      ->group(group);
  const CLI::Range count(std::int64_t{1}, std::int64_t{1'000'000'000});
  app.add_option("--sequence-length", alone.sequence_length,
                 "tokens of a window; default: the checkpoint's, else the model's positions up to "
                 "4096")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24))
      ->group(group);
  app.add_option("--batches", alone.batches, "only the first N windows")
      ->check(count)
      ->group(group);
  app.add_flag("--document-mask", alone.document_mask,
               "attention stays inside a document and positions restart with it")
      ->group(group);
  app.add_option("--precision", alone.precision, "fp32 or bf16; default: bf16 on a GPU, else fp32")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->group(group);
  app.add_option("--tensor", alone.tensor,
                 "cut every layer over N ranks; ranks that are left over share the windows out")
      ->check(count)
      ->group(group);
  app.add_option("--pipeline", alone.pipeline, "put the layers on N ranks")
      ->check(count)
      ->group(group);
  add_hang_timeout(app, alone.hang_timeout_seconds);
}

void check(const CLI::App& app, const Options& options) {
  const auto given = [&](const char* name) { return app.count(name) > 0; };
  if (!options.has_config()) {
    if (!given("--data") || !given("--checkpoint")) {
      throw ConfigError(
          "train evaluate: give a CONFIG, or --checkpoint DIR and --data PREFIX without one. See "
          "train evaluate --help");
    }
    if (given("--set"))
      throw ConfigError("train evaluate: --set changes a config, and none was given");
    return;
  }
  for (const char* name : {"--data", "--sequence-length", "--batches", "--document-mask",
                           "--precision", "--tensor", "--pipeline", "--hang-timeout"}) {
    if (given(name)) {
      throw ConfigError(
          "train evaluate: {} is for an evaluation without a config; with one use --set (data."
          "validation, data.sequence_length, evaluation.batches, ...)",
          name);
    }
  }
}

}  // namespace

int evaluate_command(Arguments arguments) {
  Options options;
  CLI::App app(
      "Computes the validation loss of a checkpoint, on the data of a config or on any tokens.",
      "train evaluate");
  declare(app, options);
  if (!parse_options(app, arguments)) return 0;
  check(app, options);
  LaunchGuard guard([&] {
    return options.has_config() ? hang_timeout_of(options.input)
                                : options.alone.hang_timeout_seconds;
  });
  return on_every_rank([&](Launch& launch) { return run(launch, guard, options); }, &guard).code;
}

}  // namespace trireme
