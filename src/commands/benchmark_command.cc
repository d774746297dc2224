#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>

#include "base/file.h"
#include "base/human_format.h"
#include "base/log.h"
#include "base/stop_flag.h"
#include "commands/benchmark_cluster.h"
#include "commands/benchmark_report.h"
#include "commands/commands.h"
#include "commands/config_options.h"
#include "commands/every_rank.h"
#include "commands/parse_options.h"
#include "dataset/loader.h"
#include "device/cpu_info.h"
#include "device/gpu_op_clock.h"
#include "guard/watch.h"
#include "model/flops.h"
#include "plan/op_measure.h"
#include "plan/traffic.h"
#include "train/device_choice.h"
#include "train/memory_check.h"
#include "train/rank_placement.h"
#include "train/run_data.h"
#include "train/run_kernels.h"
#include "train/step_loop.h"

namespace trireme {

namespace {

struct Options {
  ConfigInput input;
  std::int64_t steps = 10, warmup = 2;
  bool json = false;
  bool rates = true;
  std::string write_cluster;  ///< a file, or ""
};

Loader synthetic_loader(Runtime& runtime, const PreparedRun& prepared) {
  RunConfig synthetic = prepared.config;
  synthetic.data.train = {true, {}};
  SourceRequest request;
  request.vocab_size = synthetic.model.vocab_size;
  BatchShape shape = batch_shape(prepared, runtime);
  shape.global = prepared.run.batch.global;  // the largest alone
  return Loader(make_training_source(synthetic, request), synthetic.data, shape, -1,
                synthetic.model.vocab_size);
}

/// What the steps behind the warm-up took on this rank.
struct TimedSteps {
  std::vector<double> seconds;  ///< of each
  StepTimes sum;
  StepSample sample;  ///< where ops are traced
};

/// Bytes and nanoseconds of the channels, up to now.
struct ChannelFigures {
  ByAxis sent;
  ByAxis exposed;
};
ChannelFigures figures_of(const Channels& channels) {
  return {channels.sent_bytes(), channels.exposed_ns()};
}

/// The median of what each part of a step took: what others do meanwhile falls into few.
class StepSampler {
 public:
  StepSampler(const OpTrace* ops, const Channels& channels)
      : ops_(ops), channels_(channels), exposed_ns_(figures_of(channels).exposed.total()) {}
  void step(const StepTimes& times) {
    if (ops_ == nullptr) return;
    const OpSeconds all = op_seconds(ops_->totals());
    StepSample sample;
    sample.ops = {all.products - before_.products, all.attention - before_.attention,
                  all.passes - before_.passes, all.update - before_.update, all.pass_bytes};
    before_ = all;
    // What waits for transfers in forward and backward is predicted as such.
    const std::int64_t exposed_ns = figures_of(channels_).exposed.total();
    const double waits = static_cast<double>(exposed_ns - exposed_ns_) * 1e-9 -
                         times.seconds_of(Phase::kCommunication);
    exposed_ns_ = exposed_ns;
    sample.between_ops = times.forward_backward_seconds() - sample.ops.products -
                         sample.ops.attention - sample.ops.passes - std::max(0.0, waits);
    sample.data = times.seconds_of(Phase::kData);
    sample.seconds = times.seconds();
    samples_.push_back(sample);
  }
  [[nodiscard]] StepSample medians() const {
    StepSample middle = samples_.empty() ? StepSample() : samples_.back();  // whose bytes are all's
    for (double OpSeconds::*const kind :
         {&OpSeconds::products, &OpSeconds::attention, &OpSeconds::passes, &OpSeconds::update})
      middle.ops.*kind = median_of_samples([&](const StepSample& each) { return each.ops.*kind; });
    for (double StepSample::*const part :
         {&StepSample::between_ops, &StepSample::data, &StepSample::seconds})
      middle.*part = median_of_samples([&](const StepSample& each) { return each.*part; });
    middle.between_ops = std::max(0.0, middle.between_ops);
    return middle;
  }

 private:
  template <class Value>
  [[nodiscard]] double median_of_samples(const Value& value) const {
    std::vector<double> values;
    for (const StepSample& each : samples_) values.push_back(value(each));
    return median_of(std::move(values));
  }

  const OpTrace* const ops_;
  const Channels& channels_;
  std::int64_t exposed_ns_;
  OpSeconds before_;  // of the steps so far
  std::vector<StepSample> samples_;
};

/// Training's own steps; their ops go to `ops`, where given.
TimedSteps time_steps(Runtime& runtime, const PreparedRun& prepared, const Options& options,
                      OpTrace* ops, Watchdog& watchdog) {
  Loader loader = synthetic_loader(runtime, prepared);
  StepLoopInputs inputs;
  inputs.steps = options.warmup + options.steps;
  inputs.report = [](RankReport& mine) { mine.stop_reason = stop_signal(); };
  inputs.stands_still_behind = [&](std::int64_t step) { return step == options.warmup; };
  StepLoop loop(runtime, loader, inputs);
  TimedSteps timed;
  StepSampler sampler(ops, runtime.channels);
  for (std::int64_t i = 0; i < inputs.steps; ++i) {
    if (i == options.warmup) runtime.context.set_op_trace(ops);
    const CommittedStep step = loop.next();
    if (step.facts.stop_reason != 0)
      run_together(runtime.replica(), [] { give_up_if_stopped("train benchmark"); });
    watchdog.step_finished(step.step, step.times.seconds());
    if (i < options.warmup) continue;
    timed.seconds.push_back(step.times.seconds());
    timed.sum += step.times;
    sampler.step(step.times);
  }
  runtime.context.set_op_trace(nullptr);
  timed.sample = sampler.medians();
  return timed;
}

/// Of this rank: memory since `before`, traffic of the `steps` since `channels_before`.
RankFigures rank_figures(const Runtime& runtime, const PreparedRun& prepared, ResidentBytes before,
                         const ChannelFigures& channels_before, std::int64_t steps) {
  MemoryRequest request = memory_request(prepared.config, prepared.run, StagePurpose::kTraining,
                                         runtime.replica().rank());
  request.saving_max = 0;  // no step is saved here
  RankFigures figures;
  const ResidentBytes now = resident_bytes();
  figures.memory_bytes = now.memory - before.memory;
  figures.heap_bytes = now.heap - before.heap;
  figures.code_bytes = now.files - before.files;
  figures.untouched_bytes = now.untouched_buffers - before.untouched_buffers;
  figures.scratch_bytes = static_cast<std::int64_t>(runtime.context.scratch_bytes());
  figures.planned_memory_bytes = estimate_memory(runtime.model, request).total();
  const ChannelFigures after = figures_of(runtime.channels);
  for (const Axis axis : kTrafficAxes) {
    figures.sent_bytes[axis] = (after.sent - channels_before.sent)[axis] / steps;
    figures.exposed_ns[axis] = (after.exposed - channels_before.exposed)[axis] / steps;
  }
  for (const Traffic& traffic :
       step_traffic(runtime.model, request, prepared.config.data.document_mask))
    figures.planned_sent_bytes[traffic.axis] += traffic.bytes;
  return figures;
}

/// Collective.
MachineRates rates_of_machine(Runtime& runtime) {
  RateRequest request;
  request.bf16 = runtime.store.compute() == DType::kBF16;
  request.fp8 = runtime.part.fp8.has_value();
  request.largest_copy = copy_bytes_beyond_cache();
  runtime.replica().maximum(std::span(&request.largest_copy, 1));
  request.together = [&] { runtime.replica().barrier(); };
  return measure_rates(runtime.context, request);
}

/// On rank 0.
void write_cluster(const Cluster& cluster, const std::string& path) {
  write_file_atomically(path, cluster_file_json(cluster).dump(2) + "\n");
  for (const auto& [what, source] : cluster.sources)
    if (source.starts_with("not measured")) log_info("{}: {} {}", path, what, source);
  log_info("wrote {}: train plan CONFIG --cluster {} predicts for such machines", path, path);
}

/// From the memory that it takes to what is printed.
void time_run(Launch& launch, const PreparedRun& prepared, const Placement& placement, Watch& watch,
              const Options& options) {
  const RunConfig& config = prepared.config;
  const ResidentBytes before = resident_bytes();
  Runtime runtime(launch, config, prepared.run,
                  runtime_options(prepared, launch, placement, StagePurpose::kTraining));
  Communicator& replica = runtime.replica();
  const Watchdog::Following following(watch.watchdog(), runtime.trace);
  runtime.store.initialise(runtime.context, static_cast<std::uint64_t>(config.run.seed));
  runtime.weights_changed(Runtime::Copies::kStale);
  RunKernels kernels(runtime, "");
  kernels.measure([&] {
    Loader loader = synthetic_loader(runtime, prepared);
    const StepBatch batch = loader.next();
    Step(runtime).forward_backward(batch.micro_batches, batch.target_count);
  });
  BenchmarkResult result;
  // A GPU's ops are timed in steps of their own: each is waited for then, which a step is not.
  const bool gpu = runtime.context.on_gpu();
  GpuOpClock clock(runtime.context.exec().stream);
  OpTrace ops(runtime.trace, gpu ? &clock : nullptr);
  if (gpu)
    result.step_seconds = time_steps(runtime, prepared, options, nullptr, watch.watchdog()).seconds;
  const ChannelFigures channels_before = figures_of(runtime.channels);
  const TimedSteps traced = time_steps(runtime, prepared, options, &ops, watch.watchdog());
  if (!gpu) result.step_seconds = traced.seconds;
  const RankTimes mine = rank_times(traced.sum.phase_ns, ops);
  result.memory_bytes =
      memory_in_use(runtime.context.device());  // before the rates, which need memory of their own
  replica.maximum(std::span(&result.memory_bytes, 1));
  const RankFigures my_figures =
      rank_figures(runtime, prepared, before, channels_before, options.warmup + options.steps);
  result.ranks.resize(static_cast<std::size_t>(replica.size()));
  replica.all_gather(std::as_bytes(std::span(&my_figures, 1)),
                     std::as_writable_bytes(std::span(result.ranks)));
  const MachineRates my_rates = options.rates ? rates_of_machine(runtime) : MachineRates();
  std::optional<Cluster> cluster;
  if (!options.write_cluster.empty()) cluster = measure_cluster(runtime, prepared, traced.sample);
  const std::vector<std::string> texts = replica.all_gather_text(text_of(mine, my_rates));
  if (replica.rank() != 0) return;

  std::vector<RankTimes> ranks(texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    MachineRates rates;
    parse_rank(texts[i], ranks[i], rates);
    result.rates.add(rates);
  }
  result.model =
      fmt::format("{}, {} parameters", name_of(config.model.family),
                  format_count(static_cast<double>(count_parameters(runtime.model).total)));
  result.cpu = gpu ? device_text(runtime.context.device()) : cpu_model_name();
  result.isa = name_of(runtime.context.isa());
  result.compute = runtime.store.compute();
  result.precision = precision_name(prepared.run);
  result.world = replica.size();
  result.threads = runtime.options.threads;
  result.tokens = static_cast<double>(prepared.run.batch.global * config.data.sequence_length);
  result.model_flops = result.tokens * static_cast<double>(model_flops_per_token(
                                           config.model, config.data.sequence_length));
  if (const auto peak = peak_tflops(config, runtime.context.device()))
    result.peak_flops = *peak * 1e12 * replica.size();
  const double traced_mean = (traced.sum.seconds() - 1e-9 * static_cast<double>(ops.beyond_ns())) /
                             static_cast<double>(options.steps);
  result.cost = cost_of_step(ranks, options.steps, traced_mean, result.rates);
  std::sort(result.step_seconds.begin(), result.step_seconds.end());
  if (cluster) write_cluster(*cluster, options.write_cluster);
  std::fputs(options.json ? (benchmark_json(result).dump() + "\n").c_str()
                          : benchmark_text(result).c_str(),
             stdout);
}

int run(Launch& launch, LaunchGuard& guard, const Options& options) {
  const PreparedRun prepared = prepare_run(options.input, Needs::kSynthetic, launch);
  const RunConfig& config = prepared.config;
  run_together(launch.job(), [&] {
    if (launch.job().rank() == 0 && !options.write_cluster.empty())
      check_cluster_file(options.write_cluster);
  });
  Watch watch(launch, &guard, config.run.hang_timeout_seconds);
  launch.check_collectives(config.run.check_collectives);
  const Placement placement = bind_to_cores(config, launch);
  reporting_memory(
      launch,
      words_of(launch, memory_need(prepared, launch, placement.device, StagePurpose::kTraining)),
      [&] { time_run(launch, prepared, placement, watch, options); });
  return 0;
}

}  // namespace

int benchmark_command(Arguments arguments) {
  Options options;
  CLI::App app("Times the training step of a config on synthetic tokens; writes no checkpoint.",
               "train benchmark");
  add_config_options(app, options.input);
  app.add_option("--steps", options.steps, "steps to time; default 10")->check(integer_from(1));
  app.add_option("--warmup", options.warmup, "steps before them; default 2")
      ->check(integer_from(0));
  app.add_flag("--json", options.json, "one JSON object on standard output");
  app.add_option("--write-cluster", options.write_cluster,
                 "measure this machine and write what `train plan --cluster FILE` reads");
  app.add_flag("!--no-rates", options.rates,
               "do not measure what the machine can do (it takes seconds and memory)");
  if (!parse_options(app, arguments)) return 0;
  LaunchGuard guard([&] { return hang_timeout_of(options.input); });
  return on_every_rank([&](Launch& launch) { return run(launch, guard, options); }, &guard).code;
}

}  // namespace trireme
