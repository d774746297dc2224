#include "train/session.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/file.h"
#include "base/human_format.h"
#include "base/log.h"
#include "base/stop_flag.h"
#include "base/version.h"
#include "checkpoint/hdf5_file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/own_shards.h"
#include "config/model_parse.h"
#include "device/gpu.h"
#include "device/openmp_setup.h"
#include "model/flops.h"
#include "plan/memory.h"
#include "telemetry/console.h"
#include "telemetry/metrics_command.h"
#include "train/device_choice.h"
#include "train/kept_files.h"
#include "train/lock.h"
#include "train/run_kernels.h"
#include "train/samples.h"
#include "train/shared_directory.h"
#include "train/start_point.h"
#include "train/trainer.h"
#include "train/watch.h"

namespace trireme {

Placement settle_on_cores(const RunConfig& config, const Launch& launch) {
  std::vector<std::vector<Core>> cores_of_rank;
  for (const std::string& text : launch.host().all_gather_text(text_of(usable_cores()))) {
    cores_of_rank.push_back(parse_cores(text));
  }
  const Device device = choose_device(config.run.device, launch);
  std::vector<std::vector<int>> near_of_rank;
  if (device.kind == DeviceKind::kCuda) {
    const std::vector<int> near = cpus_near(gpu::info(device.index).pci_bus_id);
    const std::string mine = near.empty() ? "" : text_of(std::vector<Core>{{near}});
    for (const std::string& text : launch.host().all_gather_text(mine))
      near_of_rank.push_back(text.empty() ? std::vector<int>() : parse_cores(text).front().cpus);
  }
  PlacementRequest request;
  request.near_of_rank = near_of_rank;
  request.local_rank = launch.local_rank();
  request.threads_per_rank = config.run.threads_per_rank;
  request.cpu_count_max = usable_cpu_count();
  Placement placement = place_rank(cores_of_rank, request);
  placement.device = device;
  bind_this_thread(placement);
  std::set<int> cpus;
  for (const std::vector<Core>& cores : cores_of_rank) {
    for (const Core& core : cores) cpus.insert(core.cpus.begin(), core.cpus.end());
  }
  const std::int64_t usable = std::min<std::int64_t>(std::ssize(cpus), request.cpu_count_max);
  if (device.kind == DeviceKind::kCpu && launch.local_size() > usable) {
    log_warning(
        "{} share {} of {}: each waits for the others and steps take longer than on fewer ranks",
        counted(launch.local_size(), "rank"), counted(usable, "core"), launch.host_name());
  }
  if (placement.sharers > 1 && placement.threads > 1 && openmp_binds_threads()) {
    log_warning(
        "OMP_PROC_BIND (or OMP_PLACES) binds the threads of {} ranks of this host to the same "
        "cores: unset it, or have the launcher give each rank cores of its own (mpirun --bind-to)",
        placement.sharers);
  }
  return placement;
}

namespace {

RankMemory memory_of_rank(const PreparedRun& prepared, StagePurpose purpose, const Launch& launch) {
  return estimate_memory(prepared.config.model, memory_request(prepared.config, prepared.run,
                                                               purpose, launch.world().rank()));
}

}  // namespace

MemoryNeed memory_need(const PreparedRun& prepared, const Launch& launch, Device device,
                       StagePurpose purpose) {
  return {prepared.config, device, memory_of_rank(prepared, purpose, launch), purpose,
          prepared.evaluation_batch > 0};
}

RuntimeOptions runtime_options(const PreparedRun& prepared, const Launch& launch,
                               const Placement& placement, StagePurpose purpose) {
  RuntimeOptions options;
  options.device = placement.device;
  options.purpose = purpose;
  require_memory(launch, memory_need(prepared, launch, options.device, purpose));
  const MemoryRequest request =
      memory_request(prepared.config, prepared.run, purpose, launch.world().rank());
  require_attention(launch, options.device, *request.attention,
                    attention_layout(prepared.config.model, request), purpose);
  options.threads = placement.threads;
  return options;
}

BatchShape batch_shape(const PreparedRun& prepared, const Runtime& runtime) {
  BatchShape shape;
  shape.global = prepared.run.batch.global;
  shape.micro = prepared.run.passes.micro;
  shape.accumulation = prepared.run.passes.accumulation;
  shape.data_rank = runtime.data_rank();
  shape.data_ranks = static_cast<int>(prepared.run.batch.data_ranks);
  shape.tokens = prepared.config.data.sequence_length;
  shape.context = runtime.part.cut.context;
  // A step that runs ahead may be computed again, and its successor's targets are counted by then.
  shape.lookahead = prepared.config.parallel.speculative_step ? 2 : 1;
  return shape;
}

namespace {

struct Sources {
  std::shared_ptr<const SampleSource> training;
  std::vector<NamedSource> validation;
};

/// Rank 0 checks the files and builds index caches, then the others open what is there.
Sources open_sources(const PreparedRun& prepared, Communicator& world) {
  SourceRequest request;
  request.total_samples = prepared.run.steps * prepared.run.batch.global;
  request.vocab_size = prepared.config.model.vocab_size;
  request.tokenizer_hashes = prepared.tokenizer_hashes;
  Sources sources;
  for (const bool leader : {true, false}) {
    request.check = leader ? TokenCheck::kBeforeStart : TokenCheck::kOnRead;
    run_together(world, [&] {
      if ((world.rank() == 0) != leader) return;
      sources.training = make_training_source(prepared.config, request);
      sources.validation = make_validation_sources(prepared.config, request);
    });
    if (world.size() == 1) break;
  }
  return sources;
}

/// Of the memory that this rank may use on its host. A GPU's is taken by now, a host's when it is
/// touched.
std::int64_t host_memory_left(const Runtime& runtime, const RankMemory& needed) {
  const std::int64_t share = memory_bytes_available() / runtime.launch.local_size();
  return runtime.context.on_gpu() ? share : share - needed.total() + needed.saving;
}

/// Settles how much memory saves are staged in, where the config leaves it open: all that they
/// need, or a part of what there is.
void settle_staging(const PreparedRun& prepared, const Runtime& runtime, RankMemory& memory) {
  if (prepared.config.checkpoint.staging_bytes > 0) return;
  const std::int64_t left = host_memory_left(runtime, memory);
  if (memory.saving <= left / 5 * 4) return;
  const std::int64_t settled = std::min(memory.saving, std::max(2 * kShardBytesMax, left / 2));
  if (!runtime.context.on_gpu()) memory.buffers -= memory.saving - settled;
  memory.saving = settled;
}

std::string saving_text(const RunConfig::Checkpoint& config, const RankMemory& memory,
                        std::int64_t needed) {
  if (!config.async) return "";
  return fmt::format(
      "  saving    {} of memory for a save under way{}\n", format_bytes(memory.saving),
      memory.saving >= needed ? ""
                              : fmt::format(" of {}: beyond it steps wait for the disk "
                                            "(checkpoint.staging_bytes)",
                                            format_bytes(needed)));
}

void print_start(const PreparedRun& prepared, const Runtime& runtime, const Placement& placement,
                 const RankMemory& memory) {
  const RunConfig& config = prepared.config;
  RankPlace mine;
  mine.rank = runtime.world().rank();
  mine.host = runtime.launch.host_name();
  mine.cores = range_text(placement.cpus);
  mine.threads = runtime.options.threads;
  mine.device = device_text(runtime.context.device());
  Json place = Json::object();
  place["host"] = mine.host;
  place["cores"] = mine.cores;
  place["threads"] = mine.threads;
  place["device"] = mine.device;
  std::vector<RankPlace> places;
  for (const std::string& text : runtime.world().all_gather_text(place.dump())) {
    const Json other = parse_json(text, "a place");
    places.push_back({static_cast<std::int64_t>(places.size()), other.find("host")->as_string(),
                      other.find("cores")->as_string(), other.find("threads")->as_integer(),
                      other.find("device")->as_string()});
  }
  const std::vector<MemoryItem> items = items_of(memory);
  // A GPU's memory is taken by now, a host's when it is touched.
  std::int64_t available = memory_bytes_available() / runtime.launch.local_size();
  if (runtime.context.on_gpu()) {
    available = static_cast<std::int64_t>(gpu::free_bytes());
    for (const MemoryItem& item : items) available += item.second;
  }
  BatchArithmetic batch = arithmetic_of(prepared.run, config.data.sequence_length);
  batch.windows = prepared.data.windows;
  log_info("{} with {} parameters, computing in {}", name_of(config.model.family),
           format_count(static_cast<double>(count_parameters(runtime.model).total)),
           name_of(runtime.store.compute()));
  log_info_text(batch_text(batch) + memory_text(items, available) +
                saving_text(config.checkpoint, memory, staged_bytes_max(runtime.store.state())) +
                places_text(places));
}

StartLine start_line(const PreparedRun& prepared, const Runtime& runtime) {
  StartLine line;
  line.version = program_version();
  line.world = runtime.world().size();
  line.mesh = prepared.run.mesh.json();
  line.parameters = count_parameters(runtime.model).total;
  line.model_flops_per_token =
      model_flops_per_token(prepared.config.model, prepared.config.data.sequence_length);
  line.peak_tflops = peak_tflops(prepared.config, runtime.context.device());
  line.config = resolved_json(prepared.config);
  return line;
}

/// The run's folder on rank 0: its lock for as long as the object lives, what dead runs left behind
/// removed.
class RunDirectory {
 public:
  RunDirectory(const PreparedRun& prepared, Launch& launch) {
    run_together(launch.world(), [&] {
      if (launch.world().rank() != 0) return;
      lock_ = std::make_unique<RunLock>(prepared.config.run.directory,
                                        [&launch](const std::string& why) {
                                          log_any_rank("{}", why);
                                          launch.abort(static_cast<int>(ExitCode::kEnvironment));
                                        });
      const std::string left = remove_leftovers(prepared.config.checkpoint_directory());
      if (!left.empty()) log_warning("{}", left);
    });
    require_shared_directory(launch, prepared.config.run.directory);
    const std::filesystem::path checkpoints = prepared.config.checkpoint_directory();
    std::error_code ignored;
    std::int64_t there = std::filesystem::exists(checkpoints, ignored) ? 1 : 0;
    launch.world().broadcast(std::as_writable_bytes(std::span(&there, 1)), 0);
    if (there != 0) require_shared_directory(launch, checkpoints);
  }

 private:
  std::unique_ptr<RunLock> lock_;
};

std::vector<ValidationSet> validation_of(const Sources& sources, const PreparedRun& prepared,
                                         const Runtime& runtime) {
  const RunConfig& config = prepared.config;
  BatchShape shape = batch_shape(prepared, runtime);
  if (prepared.evaluation_batch > 0) shape.global = prepared.evaluation_batch;
  std::vector<ValidationSet> sets;
  for (const NamedSource& set : sources.validation) {
    sets.push_back({set.name, std::make_unique<EvaluationBatches>(
                                  set.source, config.data, shape, config.evaluation.batches,
                                  prepared.end_token, config.model.vocab_size)});
  }
  return sets;
}

}  // namespace

std::vector<ValidationSet> open_validation(const PreparedRun& prepared, const Runtime& runtime) {
  const Sources sources = open_sources(prepared, runtime.world());
  if (sources.validation.empty()) {
    throw SharedError(
        ExitCode::kConfig,
        "data.validation: the config names no validation data (nor data.split). Add it.");
  }
  return validation_of(sources, prepared, runtime);
}

namespace {

/// The end where any rank was told to stop while all were starting: nothing is new yet, so nothing
/// is saved. Collective.
std::optional<RunEnd> stopped_before_the_first_step(Communicator& world) {
  std::int64_t stopped = stop_signal();
  world.maximum(std::span(&stopped, 1));
  if (stopped == 0) return std::nullopt;
  const char* const name = stop_signal_name(static_cast<int>(stopped));
  log_info("stopped by {} before the first step: nothing new to save", name);
  return RunEnd{ExitCode::kRequeue, fmt::format("{} before the first step, please requeue", name)};
}

/// The config names validation data, but a split may leave it nothing.
void require_evaluation(const RunConfig& config, const Sources& sources) {
  if (!sources.validation.empty()) return;
  if (!config.checkpoint.keep_best && config.evaluation.stop_after == 0) return;
  throw SharedError(
      ExitCode::kConfig,
      fmt::format("data.split: gives validation no share, so that {} has nothing to "
                  "go by. Give it one, or leave that out",
                  config.checkpoint.keep_best ? "checkpoint.keep_best" : "evaluation.stop_after"));
}

/// Why a run that could make more steps does not.
std::string early_stop_text(const StartPoint& start, const PreparedRun& prepared) {
  if (!stopped_early(start, prepared)) return "";
  return fmt::format(
      ", where {} in a row had found no better loss (evaluation.stop_after {}; a larger number, or "
      "0, goes on)",
      counted(start.progress.best.evaluations_since, "evaluation"),
      prepared.config.evaluation.stop_after);
}

/// Behind a crash, or where the run goes back: checkpoints/best is what the run knows as its best.
/// What is not there any more is no best. Collective.
void settle_best(const PreparedRun& prepared, Communicator& world, RunProgress& progress) {
  if (!prepared.config.checkpoint.keep_best) return;
  std::int64_t there = 0;
  run_together(world, [&] {
    if (world.rank() != 0 || progress.best.kept.step < 0) return;
    const std::filesystem::path directory = prepared.config.checkpoint_directory();
    std::error_code ignored;
    if (!std::filesystem::exists(directory / step_folder_name(progress.best.kept.step), ignored))
      return;
    there = 1;
    try {
      if (step_of_best(directory) != progress.best.kept.step)
        point_best(directory, progress.best.kept.step);
    } catch (const DataError& error) {
      log_warning("{}", error.what());
    }
  });
  world.broadcast(std::as_writable_bytes(std::span(&there, 1)), 0);
  if (there == 0) progress.best.kept = {};
}

/// A run that is not finished, on cores and a device of its own.
struct Session {
  Launch& launch;
  const PreparedRun& prepared;
  Watch& watch;
  const Placement& placement;
  const Sources& sources;
};

/// From the memory that it takes to its end.
RunEnd train_from(const Session& session, StartPoint start) {
  const PreparedRun& prepared = session.prepared;
  const RunConfig& config = prepared.config;
  Launch& launch = session.launch;
  Communicator& world = launch.world();
  const bool leader = world.rank() == 0;
  const Sources& sources = session.sources;
  Watch& watch = session.watch;
  Runtime runtime(launch, config, prepared.run,
                  runtime_options(prepared, launch, session.placement, StagePurpose::kTraining));
  const Watchdog::Following following(watch.watchdog(), runtime.trace);
  RankMemory memory = memory_of_rank(prepared, runtime.options.purpose, launch);
  settle_staging(prepared, runtime, memory);
  print_start(prepared, runtime, session.placement, memory);
  start = load_start(runtime, prepared, std::move(start));
  settle_best(prepared, world, start.progress);
  if (auto stopped = stopped_before_the_first_step(world)) return *std::move(stopped);
  // Behind the tensors: metrics after the step where the run begins are dropped.
  std::unique_ptr<Reporter> reporter;
  run_together(world, [&] {
    if (!leader) return;
    // metrics.jsonl before config.json: a config.json alone would be somebody else's (run_files.h).
    reporter = std::make_unique<Reporter>(
        config, Reporter::Begin{start.progress.step, start.progress.consumed_samples},
        prepared.run.steps, world.size());
    write_file_atomically(std::filesystem::path(config.run.directory) / "config.json",
                          resolved_json(config).dump(2) + "\n");
  });
  if (reporter) reporter->start(start_line(prepared, runtime));
  if (!start.checkpoint.empty()) {
    log_info("resuming from step {} ({})", start.progress.step, start.checkpoint.string());
    if (reporter) reporter->resume({start.progress.step, start.checkpoint.string()});
  }

  Loader loader(sources.training, config.data, batch_shape(prepared, runtime), prepared.end_token,
                config.model.vocab_size);
  const std::vector<ValidationSet> validation = validation_of(sources, prepared, runtime);
  std::optional<Samples> samples;
  if (!config.evaluation.samples.empty()) samples.emplace(runtime, prepared);
  RunKernels kernels(runtime, start.checkpoint);
  kernels.measure([&] {
    loader.seek(start.progress.consumed_samples);
    const StepBatch batch = loader.next();
    Step(runtime).forward_backward(batch.micro_batches, batch.target_count);
  });
  TrainerInputs inputs{prepared, save_request(prepared, start.checkpoint, world), memory.saving};
  if (const std::string chosen = kernels.text(); !chosen.empty()) {
    inputs.save.files.push_back({RunKernels::kFileName, chosen});
    run_together(world, [&] {
      if (!leader) return;
      write_file_atomically(std::filesystem::path(config.run.directory) / RunKernels::kFileName,
                            chosen);
    });
  }
  inputs.loader = &loader;
  inputs.validation = validation;
  inputs.samples = samples ? &*samples : nullptr;
  inputs.reporter = reporter.get();
  inputs.watchdog = &watch.watchdog();
  watch.answer_stop("stopping after this step, saving; again to end at once");
  return Trainer(runtime, std::move(inputs), start.progress).run();
}

}  // namespace

RunEnd train_session(Launch& launch, const PreparedRun& prepared, LaunchGuard* guard) {
  Communicator& world = launch.world();
  const RunConfig& config = prepared.config;
  Watch watch(launch, guard, config.run.hang_timeout_seconds);
  watch.answer_stop("stopping before the first step; again to end at once");
  launch.check_collectives(config.run.check_collectives);
  run_together(world, [&] {
    if (world.rank() == 0 && config.log.command) find_program(config.log.command->front());
  });
  const RunDirectory directory(prepared, launch);
  StartPoint start = choose_start(prepared, world);
  if (is_over(start, prepared)) {
    log_info("{}: finished: step {} of {} is saved in {}{}", config.run.directory,
             start.progress.step, prepared.run.steps, start.checkpoint.string(),
             early_stop_text(start, prepared));
    return run_end(stopped_early(start, prepared) ? EndReason::kEarlyStop : EndReason::kSteps, 0);
  }
  const Sources sources = open_sources(prepared, world);
  require_evaluation(config, sources);
  if (auto stopped = stopped_before_the_first_step(world)) return *std::move(stopped);
  const Placement placement = settle_on_cores(config, launch);
  RunEnd end;
  telling_of_memory(
      launch,
      words_of(launch, memory_need(prepared, launch, placement.device, StagePurpose::kTraining)),
      [&] {
        end = train_from({launch, prepared, watch, placement, sources}, std::move(start));
      });
  return end;
}

}  // namespace trireme
