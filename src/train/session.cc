#include "train/session.h"

#include <filesystem>
#include <memory>

#include "base/file.h"
#include "base/human_format.h"
#include "base/log.h"
#include "base/stop_flag.h"
#include "guard/watch.h"
#include "telemetry/metrics_command.h"
#include "train/memory_check.h"
#include "train/rank_placement.h"
#include "train/reporter.h"
#include "train/run_data.h"
#include "train/run_directory.h"
#include "train/run_kernels.h"
#include "train/samples.h"
#include "train/start_point.h"
#include "train/start_report.h"
#include "train/trainer.h"

namespace trireme {

namespace {

/// The end where any rank got a stop signal at the start: nothing new, nothing saved. Collective.
std::optional<RunEnd> stopped_before_the_first_step(Communicator& job) {
  std::int64_t stopped = stop_signal();
  job.maximum(std::span(&stopped, 1));
  if (stopped == 0) return std::nullopt;
  const char* const name = stop_signal_name(static_cast<int>(stopped));
  log_info("stopped by {} before the first step: nothing new to save", name);
  return RunEnd{ExitCode::kRequeue, fmt::format("{} before the first step, please requeue", name)};
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

/// A run that is not finished, on cores and a device of its own.
struct Session {
  Launch& launch;
  const PreparedRun& prepared;
  Watch& watch;
  const Placement& placement;
  const RunSources& sources;
};

/// On rank 0, behind the tensors: metrics after the step where the run begins are dropped.
std::unique_ptr<Reporter> begin_reports(const PreparedRun& prepared, const Runtime& runtime,
                                        const StartPoint& start) {
  const RunConfig& config = prepared.config;
  Communicator& replica = runtime.replica();
  std::unique_ptr<Reporter> reporter;
  run_together(replica, [&] {
    if (replica.rank() != 0) return;
    // metrics.jsonl before config.json: a config.json alone would be somebody else's (run_files.h).
    reporter = std::make_unique<Reporter>(
        config, Reporter::Begin{start.progress.step, start.progress.consumed_samples},
        Reporter::Total{prepared.run.steps,
                        prepared.run.ramp.advance(start.progress.consumed_samples,
                                                  prepared.run.steps - start.progress.step)},
        replica.size());
    write_file_atomically(std::filesystem::path(config.run.directory) / "config.json",
                          resolved_json(config).dump(2) + "\n");
  });
  if (reporter) reporter->start(start_line(prepared, runtime));
  if (start.checkpoint.empty()) return reporter;
  log_info("resuming from step {} ({})", start.progress.step, start.checkpoint.string());
  if (const auto exit = config.run.exit_at_step; exit && *exit <= start.progress.step)
    log_info("run.exit_at_step = {} is behind: the run goes on to its end", *exit);
  if (reporter) reporter->resume({start.progress.step, start.checkpoint.string()});
  return reporter;
}

/// In the run's folder and, from there, in its checkpoints.
void keep_kernel_choices(const std::string& chosen, const Runtime& runtime, SaveRequest& save) {
  if (chosen.empty()) return;
  save.files.push_back({RunKernels::kFileName, chosen});
  run_together(runtime.replica(), [&] {
    if (runtime.replica().rank() != 0) return;
    const std::filesystem::path directory = runtime.config.run.directory;
    write_file_atomically(directory / RunKernels::kFileName, chosen);
  });
}

/// Steps without an update, of the run's first batch.
void measure_kernels(RunKernels& kernels, Runtime& runtime, Loader& loader,
                     std::int64_t consumed_samples) {
  kernels.measure([&] {
    loader.seek(consumed_samples);
    const StepBatch batch = loader.next();
    Step(runtime).forward_backward(batch.micro_batches, batch.target_count);
  });
}

/// From the memory that it takes to its end.
RunEnd train_from(const Session& session, RankMemory memory, StartPoint start) {
  const PreparedRun& prepared = session.prepared;
  const RunConfig& config = prepared.config;
  Launch& launch = session.launch;
  Runtime runtime(launch, config, prepared.run,
                  runtime_options(prepared, launch, session.placement, StagePurpose::kTraining));
  const Watchdog::Following following(session.watch.watchdog(), runtime.trace);
  choose_staging(runtime, memory);
  print_start(prepared, runtime, session.placement, memory);
  start = load_start(runtime, prepared, std::move(start));
  if (auto stopped = stopped_before_the_first_step(launch.job())) return *std::move(stopped);
  const std::unique_ptr<Reporter> reporter = begin_reports(prepared, runtime, start);
  Loader loader(session.sources.training, config.data, batch_shape(prepared, runtime),
                prepared.end_token, config.model.vocab_size);
  const std::vector<ValidationSet> validation = validation_sets(session.sources, prepared, runtime);
  std::optional<Samples> samples;
  if (!config.evaluation.samples.empty()) samples.emplace(runtime, prepared);
  RunKernels kernels(runtime, start.checkpoint);
  measure_kernels(kernels, runtime, loader, start.progress.consumed_samples);
  TrainerInputs inputs{prepared, save_request(prepared, start.checkpoint, runtime.replica())};
  keep_kernel_choices(kernels.text(), runtime, inputs.save);
  inputs.staging_bytes = memory.saving;
  inputs.loader = &loader;
  inputs.validation = validation;
  inputs.samples = samples ? &*samples : nullptr;
  inputs.reporter = reporter.get();
  inputs.watchdog = &session.watch.watchdog();
  session.watch.answer_stop("stopping after this step, saving; again to end at once");
  return Trainer(runtime, std::move(inputs), start.progress).run();
}

}  // namespace

RunEnd train_session(Launch& launch, const PreparedRun& prepared, LaunchGuard* guard) {
  Communicator& job = launch.job();
  const RunConfig& config = prepared.config;
  Watch watch(launch, guard, config.run.hang_timeout_seconds);
  watch.answer_stop("stopping before the first step; again to end at once");
  launch.check_collectives(config.run.check_collectives);
  run_together(job, [&] {
    if (job.rank() == 0 && config.log.command) find_program(config.log.command->front());
  });
  const RunDirectory directory(prepared, launch);
  StartPoint start = choose_start(prepared, launch.replica());
  if (is_over(start, prepared)) {
    log_info("{}: finished: step {} of {} is saved in {}{}", config.run.directory,
             start.progress.step, prepared.run.steps, start.checkpoint.string(),
             early_stop_text(start, prepared));
    return run_end(stopped_early(start, prepared) ? EndReason::kEarlyStop : EndReason::kSteps, 0);
  }
  const RunSources sources = open_sources(prepared, job);
  require_evaluation(config, sources);
  if (auto stopped = stopped_before_the_first_step(job)) return *std::move(stopped);
  const Placement placement = bind_to_cores(config, launch);
  const MemoryNeed need = memory_need(prepared, launch, placement.device, StagePurpose::kTraining);
  RunEnd end;
  reporting_memory(launch, words_of(launch, need), [&] {
    end = train_from({launch, prepared, watch, placement, sources}, need.memory, std::move(start));
  });
  return end;
}

}  // namespace trireme
