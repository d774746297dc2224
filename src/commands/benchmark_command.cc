#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>

#include "base/human_format.h"
#include "base/stop_flag.h"
#include "commands/commands.h"
#include "commands/config_options.h"
#include "commands/every_rank.h"
#include "commands/parse_options.h"
#include "dataset/loader.h"
#include "model/flops.h"
#include "train/session.h"
#include "train/step.h"

namespace trireme {

namespace {

struct Options {
  ConfigInput input;
  std::int64_t steps = 10, warmup = 2;
  bool json = false;
};

struct Phases {
  double forward = 0, backward = 0, communication = 0, optimizer = 0, data = 0;
};

Phases take_phases(Trace& trace, double steps) {
  const auto seconds = [&](Phase phase) {
    return static_cast<double>(trace.take_total_ns(phase)) * 1e-9 / steps;
  };
  Phases phases;
  phases.forward = seconds(Phase::kForward);
  phases.backward = seconds(Phase::kBackwardInput) + seconds(Phase::kBackwardWeight);
  phases.communication = seconds(Phase::kCommunication);
  phases.optimizer = seconds(Phase::kOptimizer);
  phases.data = seconds(Phase::kData);
  return phases;
}

int run(Launch& launch, const Options& options) {
  using Clock = std::chrono::steady_clock;
  Communicator& world = launch.world();
  const PreparedRun prepared = prepare_run(options.input, Needs::kSynthetic, world);
  const RunConfig& config = prepared.config;
  Runtime runtime(
      launch, config, config.model,
      runtime_options(prepared, settle_on_cores(config, launch), StagePurpose::kTraining));
  runtime.store.initialise(static_cast<std::uint64_t>(config.run.seed));
  runtime.store.refresh_forms(runtime.context);
  RunConfig synthetic = config;
  synthetic.data.train = {true, {}};
  SourceRequest request;
  request.vocab_size = config.model.vocab_size;
  Loader loader(make_training_source(synthetic, request), synthetic.data,
                batch_shape(prepared, runtime), -1, config.model.vocab_size);
  Step step(runtime);
  std::vector<double> seconds;
  for (std::int64_t i = 0; i < options.warmup + options.steps; ++i) {
    if (i == options.warmup) take_phases(runtime.trace, 1);
    run_together(world, [] { give_up_if_stopped("train benchmark"); });
    world.barrier();
    const Clock::time_point begin = Clock::now();
    StepBatch batch;
    {
      const Span span(runtime.trace, Phase::kData);
      batch = loader.next();
    }
    std::int64_t targets = batch.target_count;
    runtime.data->sum(std::span(&targets, 1));
    step.forward_backward(batch.micro_batches, targets);
    step.update(config.optimizer.lr, step.gradient_norm());
    world.barrier();
    if (i >= options.warmup)
      seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  std::int64_t memory = peak_resident_bytes();
  world.maximum(std::span(&memory, 1));
  if (world.rank() != 0) return 0;

  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const auto tokens = static_cast<double>(prepared.run.batch.global * config.data.sequence_length);
  const double flops =
      static_cast<double>(model_flops_per_token(config.model, config.data.sequence_length));
  const Phases phases = take_phases(runtime.trace, static_cast<double>(options.steps));
  const double tflops = tokens * flops / median * 1e-12;
  Json json;
  json["world"] = world.size();
  json["threads_per_rank"] = runtime.options.threads;
  json["steps"] = options.steps;
  json["step_seconds"]["minimum"] = seconds.front();
  json["step_seconds"]["median"] = median;
  json["step_seconds"]["maximum"] = seconds.back();
  json["step_seconds"]["mean"] = std::accumulate(seconds.begin(), seconds.end(), 0.0) /
                                 static_cast<double>(seconds.size());
  json["tokens_per_second"] = tokens / median;
  json["tflops_per_second"] = tflops;
  json["mfu"] =
      config.run.peak_tflops ? Json(tflops / (*config.run.peak_tflops * world.size())) : Json();
  json["memory_bytes"] = memory;
  json["time"]["forward"] = phases.forward;
  json["time"]["backward"] = phases.backward;
  json["time"]["communication_exposed"] = phases.communication;
  json["time"]["optimizer"] = phases.optimizer;
  json["time"]["data_wait"] = phases.data;
  if (options.json) {
    std::puts(json.dump().c_str());
    return 0;
  }
  std::printf(
      "%s tokens/s, %.1f GFLOP/s, step %.4f s (median of %lld; %.4f to %.4f), memory %s a rank\n",
      format_count(tokens / median).c_str(), tflops * 1e3, median,
      static_cast<long long>(options.steps), seconds.front(), seconds.back(),
      format_bytes(memory).c_str());
  const auto row = [&](const char* name, double value) {
    std::printf("  %-24s %8.4f s  %5.1f %%\n", name, value, 100 * value / median);
  };
  row("forward and loss", phases.forward);
  row("backward", phases.backward);
  row("communication, exposed", phases.communication);
  row("norm and optimizer", phases.optimizer);
  row("waiting for data", phases.data);
  return 0;
}

}  // namespace

int benchmark_command(Arguments arguments) {
  Options options;
  CLI::App app("Times the training step of a config on synthetic tokens; writes no checkpoint.",
               "train benchmark");
  add_config_options(app, options.input);
  app.add_option("--steps", options.steps, "steps to time; default 10")->check(CLI::PositiveNumber);
  app.add_option("--warmup", options.warmup, "steps before them; default 2")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--json", options.json, "one JSON object on standard output");
  if (!parse_options(app, arguments)) return 0;
  return on_every_rank([&](Launch& launch) { return run(launch, options); });
}

}  // namespace trireme
