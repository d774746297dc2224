#include "train/run_saver.h"

#include <utility>
#include <vector>

#include "base/log.h"
#include "base/version.h"
#include "checkpoint/hdf5_file.h"
#include "config/model_parse.h"
#include "guard/watchdog.h"
#include "train/kept_files.h"
#include "train/reporter.h"

namespace trireme {

namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Json versions_json() {
  Json versions = Json::object();
  versions["trireme"] = program_version();
  versions["commit"] = program_commit();
  versions["hdf5"] = hdf5_version();
  versions["mpi"] = mpi_library_name();
  return versions;
}

}  // namespace

SaveRequest save_request(const PreparedRun& prepared, const std::filesystem::path& resumed,
                         Communicator& replica) {
  const RunConfig& config = prepared.config;
  SaveRequest request;
  request.directory = config.checkpoint_directory();
  request.mesh = prepared.run.mesh.json();
  request.zero_stage = config.parallel.zero_stage;
  request.model = model_keys_json(config.model);
  request.tokenizer["path"] = config.tokenizer;
  request.tokenizer["hash"] = prepared.tokenizer_hashes.front();
  request.versions = versions_json();
  request.min_free_bytes = config.checkpoint.min_free_bytes;
  request.retention = {config.checkpoint.keep_last, config.checkpoint.keep_every_steps};
  run_together(replica, [&] {
    if (replica.rank() == 0)
      request.files = kept_files(config, prepared.tokenizer_hashes.front(), resumed);
  });
  return request;
}

RunSaver::RunSaver(Runtime& runtime, const TrainerInputs& inputs, RunProgress& progress)
    : runtime_(runtime),
      inputs_(inputs),
      progress_(progress),
      writer_(runtime.replica(), runtime.store.state(),
              {inputs_.staging_bytes, runtime.context.on_gpu() ? &runtime.context : nullptr,
               runtime.config.checkpoint.async ? Meanwhile::kChange : Meanwhile::kStay}),
      begun_step_(progress.step > 0 ? progress.step : -1) {
  if (inputs_.watchdog != nullptr) inputs_.watchdog->watch_writer(&writer_.last_progress_ns());
}

RunSaver::~RunSaver() {
  if (inputs_.watchdog != nullptr) inputs_.watchdog->watch_writer(nullptr);
}

void RunSaver::report(RankReport& mine) const {
  const double late_seconds = runtime_.config.checkpoint.interval_minutes * 60;
  mine.save_is_late =
      runtime_.replica().rank() == 0 && late_seconds > 0 && seconds_since(begun_) >= late_seconds;
  mine.writers = WriterStates(writer_.state());
}

void RunSaver::advance(const RankReport& reports) {
  if (!writer_.busy()) return;
  if (const std::optional<SaveResult> result = writer_.advance(reports.writers)) end(*result);
}

bool RunSaver::is_best(std::optional<double> loss) const {
  const BestLoss::Kept& standing = kept_ ? *kept_ : progress_.best.kept;
  return runtime_.config.checkpoint.keep_best && loss && *loss < standing.loss;
}

void RunSaver::save_if_due(bool late, std::optional<double> loss) {
  const std::int64_t interval = runtime_.config.checkpoint.interval_steps;
  if (late || (interval > 0 && progress_.step % interval == 0)) {
    save(Kind::kInterval, loss);
  } else if (is_best(loss)) {
    save(Kind::kBest, loss);
  }
}

void RunSaver::save(Kind kind, std::optional<double> loss) {
  if (begun_step_ == progress_.step && !loss) return;
  const RunConfig::Checkpoint& config = runtime_.config.checkpoint;
  const Span span(runtime_.trace, Phase::kCheckpoint);
  if (writer_.busy()) {
    if (kind != Kind::kLast && config.when_busy == WhenBusy::kSkip) {
      log_info("step {} is not saved: step {} is still being written (checkpoint.when_busy)",
               progress_.step, writer_.step());
      return;
    }
    wait();
  }
  const Clock::time_point begin = Clock::now();
  if (inputs_.reporter != nullptr) inputs_.reporter->before_save();
  SaveRequest request = inputs_.save;
  RunProgress saved = progress_;
  kept_.reset();
  if (is_best(loss)) {
    if (saved.best.kept.alone) request.retention.superseded = saved.best.kept.step;
    saved.best.kept = {*loss, progress_.step, kind == Kind::kBest};
    kept_ = saved.best.kept;
  }
  if (config.keep_best) request.retention.best = saved.best.kept.step;
  State state = runtime_.store.state();
  state.scalars = saved_scalars(inputs_.prepared, saved, *runtime_.optimizer);
  request.step = progress_.step;
  request.consumed_samples = progress_.consumed_samples;
  request.state = &state;
  if (inputs_.reporter != nullptr)
    request.before_commit = [this] { inputs_.reporter->before_commit(); };
  const bool waits = kind == Kind::kLast || !config.async;
  const std::optional<SaveResult> failed =
      writer_.begin(request, waits ? Meanwhile::kStay : Meanwhile::kChange);
  begun_step_ = progress_.step;
  stall_seconds_ = seconds_since(begin);
  begun_ = Clock::now();
  if (failed) return end(*failed);
  if (waits) wait();
}

void RunSaver::wait() {
  const Clock::time_point begin = Clock::now();
  const SaveResult result = writer_.finish();
  stall_seconds_ += seconds_since(begin);
  end(result);
}

void RunSaver::finish() {
  if (!writer_.busy()) return;
  const Span span(runtime_.trace, Phase::kCheckpoint);
  wait();
}

void RunSaver::end(const SaveResult& result) {
  last_failed_ = !result.saved();
  failed_saves_ += last_failed_;
  const std::optional<BestLoss::Kept> kept = std::exchange(kept_, std::nullopt);
  if (kept && result.saved()) progress_.best.kept = *kept;
  if (inputs_.reporter == nullptr) return;
  if (!result.warning.empty()) log_warning("{}", result.warning);
  CheckpointLine line;
  line.step = result.step;
  line.path = result.path.string();
  line.bytes = result.bytes;
  line.stall_seconds = stall_seconds_;
  line.save_seconds = result.seconds;
  if (!result.saved()) line.error = result.error;
  inputs_.reporter->checkpoint(line);
  if (kept && result.saved())
    log_info("step {} is the best so far (validation loss {:.4f})", kept->step, kept->loss);
}

}  // namespace trireme
