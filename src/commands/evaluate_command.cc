#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/log.h"
#include "base/stop_flag.h"
#include "checkpoint/manifest.h"
#include "commands/commands.h"
#include "commands/config_options.h"
#include "commands/every_rank.h"
#include "commands/parse_options.h"
#include "parallel/host_state.h"
#include "telemetry/metrics_lines.h"
#include "train/evaluator.h"
#include "train/model_source.h"
#include "train/run_kernels.h"
#include "train/session.h"
#include "train/watch.h"

namespace trireme {

namespace {

struct Options {
  ConfigInput input;
  std::string checkpoint;
  bool json = false;
};

int run(Launch& launch, LaunchGuard& guard, const Options& options) {
  Communicator& world = launch.world();
  PreparedRun prepared = prepare_run(options.input, Needs::kTraining, world);
  Watch watch(launch, &guard, prepared.config.run.hang_timeout_seconds);
  const ModelSource source(
      options.checkpoint.empty() ? prepared.config.run.directory : options.checkpoint, world);
  take_model(prepared, source.model());
  launch.check_collectives(prepared.config.run.check_collectives);
  Runtime runtime(launch, prepared.config, prepared.run,
                  runtime_options(prepared, launch, settle_on_cores(prepared.config, launch),
                                  StagePurpose::kEvaluation));
  const Watchdog::Following following(watch.watchdog(), runtime.trace);
  HostState host(runtime.context, runtime.store.state());
  source.load(host.state(), world);
  host.store();
  runtime.weights_changed(Runtime::Forms::kStale);
  std::unique_ptr<EvaluationBatches> batches = open_validation(prepared, runtime);
  RunKernels kernels(runtime, source.is_checkpoint() ? source.path() : "");
  kernels.measure([&] { rehearse_evaluation(runtime, *batches); });
  const EvaluationResult result = evaluate(runtime, *batches, [&] {
    run_together(world, [] { give_up_if_stopped("train evaluate"); });
  });
  if (world.rank() != 0) return 0;
  EvaluationLine line;
  if (source.is_checkpoint()) line.step = read_manifest(source.path()).step;
  line.loss = result.loss;
  line.perplexity = result.perplexity();
  line.tokens = result.tokens;
  if (options.json) {
    std::puts(to_json(line).dump().c_str());
  } else {
    std::printf("validation loss %.6f, perplexity %.4f, %lld tokens (%s)\n", line.loss,
                line.perplexity, static_cast<long long>(line.tokens), source.path().c_str());
  }
  return 0;
}

}  // namespace

int evaluate_command(Arguments arguments) {
  Options options;
  CLI::App app("Computes the validation loss of a checkpoint on the data of a config.",
               "train evaluate");
  add_config_options(app, options.input);
  app.add_option("--checkpoint", options.checkpoint,
                 "step folder, checkpoints folder, run folder or Hugging Face directory; default: "
                 "run.directory")
      ->type_name("DIR");
  app.add_flag("--json", options.json, "print the evaluation object of metrics.jsonl");
  if (!parse_options(app, arguments)) return 0;
  LaunchGuard guard([&] { return hang_timeout_of(options.input); });
  return on_every_rank([&](Launch& launch) { return run(launch, guard, options); });
}

}  // namespace trireme
