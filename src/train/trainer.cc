#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/log.h"
#include "optim/lr_schedule.h"
#include "pipeline/simulate.h"
#include "train/device_choice.h"
#include "train/evaluator.h"
#include "train/watchdog.h"

namespace trireme {

using Clock = std::chrono::steady_clock;

namespace {
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}
}  // namespace

Trainer::Trainer(Runtime& runtime, TrainerInputs inputs, Progress progress)
    : runtime_(runtime),
      inputs_(std::move(inputs)),
      progress_(progress),
      step_(runtime),
      trace_steps_(runtime),
      stopping_(runtime.config, runtime.world().rank() == 0),
      exposed_(runtime.channels.exposed_ns()),  // what came before is of no step
      writer_(runtime.world(), runtime.store.state(),
              {inputs_.staging_bytes, runtime.context.on_gpu() ? &runtime.context : nullptr,
               runtime.config.checkpoint.async ? Meanwhile::kChange : Meanwhile::kStay}),
      begun_save_(progress.step > 0 ? progress.step : -1),
      last_save_(Clock::now()) {
  if (inputs_.watchdog != nullptr) inputs_.watchdog->watch_writer(&writer_.last_progress_ns());
}

Trainer::~Trainer() {
  if (inputs_.watchdog != nullptr) inputs_.watchdog->watch_writer(nullptr);
}

ExitCode Trainer::run() {
  const auto give_up = [this](bool all_ranks_are_here) {
    if (ended_) return;
    if (all_ranks_are_here) finish_save_under_way();
    write_end(EndReason::kError);
  };
  try {
    return loop();
  } catch (const SharedError&) {
    give_up(true);
    throw;
  } catch (...) {
    give_up(runtime_.world().size() == 1);
    throw;
  }
}

ExitCode Trainer::loop() {
  const RunConfig::Run& run = runtime_.config.run;
  inputs_.loader->seek(progress_.consumed_samples);
  {
    const Span span(runtime_.trace, Phase::kData);
    batch_ = inputs_.loader->next();
  }
  target_count_ = batch_.target_count;
  runtime_.channels.peers->sum(std::span(&target_count_, 1));
  while (!finished()) {
    trace_steps_.before(progress_.step + 1);
    run_step();
    trace_steps_.after(progress_.step);
    advance_save();
    const std::int64_t interval = runtime_.config.evaluation.interval_steps;
    // What asked to stop may not wait for an evaluation.
    if (stop_ != Stopping::Reason::kNone) save(SaveKind::kLast);
    if (finished() || (interval > 0 && progress_.step % interval == 0)) evaluate();
    const bool exit_now = run.exit_at_step && progress_.step == *run.exit_at_step;
    const bool due = save_due();
    if (finished() || exit_now || stop_ != Stopping::Reason::kNone) {
      save(SaveKind::kLast);
    } else if (due) {
      save(SaveKind::kInterval);
    }
    if (finished()) break;
    if (stop_ == Stopping::Reason::kSignal) return end(EndReason::kSignal, ExitCode::kRequeue);
    if (stop_ == Stopping::Reason::kTime) return end(EndReason::kTime, ExitCode::kRequeue);
    if (stop_ == Stopping::Reason::kStopFile) {
      if (runtime_.world().rank() == 0) stopping_.remove_stop_file();
      return end(EndReason::kStopFile, ExitCode::kOk);
    }
    if (exit_now) return end(EndReason::kExitAtStep, ExitCode::kOk);
  }
  return end(EndReason::kSteps, ExitCode::kOk);
}

void Trainer::run_step() {
  const Clock::time_point begin = Clock::now();
  const std::int64_t k = progress_.step + 1;
  const StepBatch batch = batch_;
  step_.forward_backward(batch.micro_batches, target_count_);
  const double norm = step_.gradient_norm();
  const double lr =
      learning_rate(runtime_.config.lr_schedule, runtime_.config.optimizer.lr, inputs_.steps, k);

  const double loss_sum = runtime_.sum_of_losses(step_.loss_sum());
  const double loss = loss_sum / static_cast<double>(std::max<std::int64_t>(1, target_count_));
  const bool finite = std::isfinite(loss) && std::isfinite(norm);
  std::optional<SkipLine> skip;
  if (finite) {
    step_.update(lr, norm);
    progress_.skipped_in_a_row = 0;
  } else {
    skip = find_skip(loss, batch.micro_batches);
    ++progress_.skipped_in_a_row;
  }
  progress_.step = k;
  progress_.consumed_samples += inputs_.global_batch;
  if (!finished()) {  // an order may end with the run
    const Span span(runtime_.trace, Phase::kData);
    batch_ = inputs_.loader->next();
  }
  exchange_reports();
  const double seconds = seconds_since(begin);
  if (inputs_.watchdog != nullptr) inputs_.watchdog->step_finished(k, seconds);
  report_step(loss, norm, lr, seconds);
  if (skip && inputs_.reporter != nullptr) inputs_.reporter->skip(*skip);
  if (progress_.skipped_in_a_row >= kSkipsMax) {
    finish_save_under_way();
    write_end(EndReason::kDiverged);
    throw SharedError(
        ExitCode::kDiverged,
        fmt::format(
            "{} steps in a row were not finite (the last: {}, first in {} on rank {}, step {}). "
            "Lower optimizer.lr, "
            "lengthen lr_schedule.warmup_steps, or go back to an older checkpoint with "
            "run.resume.{}",
            kSkipsMax, skip->reason, skip->tensor, skip->rank, k,
            last_save_failed_ ? " The last save failed as well (its cause stands above)." : ""));
  }
}

SkipLine Trainer::find_skip(double loss, std::span<const MicroBatch> micro_batches) {
  SkipLine skip;
  skip.step = progress_.step + 1;
  skip.reason = std::isfinite(loss) ? "non-finite gradient" : "non-finite loss";
  const std::string tensor = step_.find_non_finite(micro_batches, target_count_);
  const std::vector<std::string> tensors = runtime_.world().all_gather_text(tensor);
  for (std::size_t rank = 0; rank < tensors.size(); ++rank) {
    if (tensors[rank].empty()) continue;
    skip.rank = static_cast<std::int64_t>(rank);
    skip.tensor = tensors[rank];
    return skip;
  }
  skip.tensor = "the sum over ranks";  // each part is finite, their sum is not
  return skip;
}

void Trainer::exchange_reports() {
  RankReport mine;
  // Places of the tensor axis and pipeline ranks see the same tokens: one counts them.
  const bool counts = runtime_.part.cut.tensor.index == 0 && runtime_.pipeline_rank() == 0;
  mine.next_target_count = counts ? batch_.target_count : 0;
  mine.stop_reason = static_cast<std::int64_t>(stopping_.look());
  mine.memory_bytes = memory_in_use(runtime_.context.device());
  const Executor::Occupation occupation = runtime_.executor.occupation();
  mine.span_ns = occupation.span_ns;
  mine.busy_ns = occupation.busy_ns;
  mine.writer = writer_.state();
  reports_.resize(static_cast<std::size_t>(runtime_.world().size()));
  runtime_.world().all_gather(std::as_bytes(std::span(&mine, 1)),
                              std::as_writable_bytes(std::span(reports_)));
  target_count_ = 0;
  std::int64_t stop = 0;
  for (const RankReport& report : reports_) {
    target_count_ += report.next_target_count;
    stop = std::max(stop, report.stop_reason);
    memory_bytes_ = std::max(memory_bytes_, report.memory_bytes);
  }
  stop_ = static_cast<Stopping::Reason>(stop);
  add_pipeline_times();
}

void Trainer::add_pipeline_times() {
  // The first step allocates.
  if (std::exchange(first_step_, false)) return;
  std::int64_t longest = 0, busy = 0;
  for (const RankReport& report : reports_) {
    longest = std::max(longest, report.span_ns);
    busy += report.busy_ns;
  }
  pipeline_span_ns_ += static_cast<double>(longest);
  pipeline_busy_ns_ += static_cast<double>(busy) / static_cast<double>(reports_.size());
}

StepTime Trainer::take_step_time() {
  Trace& trace = runtime_.trace;
  const auto seconds = [&](Phase phase) {
    return static_cast<double>(trace.take_total_ns(phase)) * 1e-9;
  };
  StepTime time;
  // What the passes wait for other ranks is told by axis below, once.
  time.forward_backward = seconds(Phase::kForward) + seconds(Phase::kBackwardInput) +
                          seconds(Phase::kBackwardWeight) -
                          static_cast<double>(step_.take_waits_in_passes_ns()) * 1e-9;
  const Channels::ByAxis exposed = runtime_.channels.exposed_ns();
  const auto since = [](std::int64_t now, std::int64_t before) {
    return static_cast<double>(now - before) * 1e-9;
  };
  time.communication_exposed = {{"data", since(exposed.data, exposed_.data)}};
  if (runtime_.part.cut.tensor.extent > 1)
    time.communication_exposed.emplace_back("tensor", since(exposed.tensor, exposed_.tensor));
  if (runtime_.part.cut.context.extent > 1)
    time.communication_exposed.emplace_back("context", since(exposed.context, exposed_.context));
  if (runtime_.mesh.extent(Axis::kPipeline) > 1)
    time.communication_exposed.emplace_back("pipeline", since(exposed.pipeline, exposed_.pipeline));
  exposed_ = exposed;
  time.data_wait = seconds(Phase::kData);
  time.optimizer = seconds(Phase::kOptimizer);
  return time;
}

void Trainer::report_step(double loss, double norm, double lr, double seconds) {
  StepLine line;
  line.time = take_step_time();
  if (inputs_.reporter == nullptr) return;
  const auto tokens = static_cast<double>(inputs_.global_batch * inputs_.sequence_length);
  line.step = progress_.step;
  line.loss = loss;
  line.grad_norm = norm;
  line.lr = lr;
  line.consumed_samples = progress_.consumed_samples;
  line.consumed_tokens = progress_.consumed_samples * inputs_.sequence_length;
  line.step_seconds = seconds;
  line.tokens_per_second = tokens / seconds;
  line.tflops_per_second = tokens * static_cast<double>(inputs_.flops_per_token) / seconds * 1e-12;
  if (inputs_.peak_tflops) line.mfu = line.tflops_per_second / *inputs_.peak_tflops;
  line.memory_bytes = memory_bytes_;
  inputs_.reporter->step(line);
}

void Trainer::evaluate() {
  if (inputs_.validation == nullptr || evaluated_step_ == progress_.step) return;
  evaluated_step_ = progress_.step;
  const EvaluationResult result = trireme::evaluate(runtime_, *inputs_.validation);
  // Its waits and passes are of no step.
  exposed_ = runtime_.channels.exposed_ns();
  runtime_.trace.take_total_ns(Phase::kForward);
  if (inputs_.reporter == nullptr) return;
  inputs_.reporter->evaluation({progress_.step, result.loss, result.perplexity(), result.tokens});
}

bool Trainer::save_due() {
  const RunConfig::Checkpoint& config = runtime_.config.checkpoint;
  bool due = config.interval_steps > 0 && progress_.step % config.interval_steps == 0;
  if (config.interval_minutes > 0) {
    std::int64_t late =
        seconds_since(last_save_) >= config.interval_minutes * 60;  // rank 0's clock decides
    runtime_.world().broadcast(std::as_writable_bytes(std::span(&late, 1)), 0);
    due = due || late != 0;
  }
  return due;
}

void Trainer::save(SaveKind kind) {
  if (begun_save_ == progress_.step) return;
  const RunConfig::Checkpoint& config = runtime_.config.checkpoint;
  const Span span(runtime_.trace, Phase::kCheckpoint);
  if (writer_.busy()) {
    if (kind == SaveKind::kInterval && config.when_busy == WhenBusy::kSkip) {
      log_info("step {} is not saved: step {} is still being written (checkpoint.when_busy)",
               progress_.step, writer_.step());
      return;
    }
    finish_save();
  }
  const Clock::time_point begin = Clock::now();
  if (inputs_.reporter != nullptr) inputs_.reporter->before_save();
  State state = runtime_.store.state();
  state.scalars = inputs_.scalars(progress_, runtime_.optimizer->applied_updates());
  SaveRequest request = inputs_.save;
  request.step = progress_.step;
  request.consumed_samples = progress_.consumed_samples;
  request.state = &state;
  if (inputs_.reporter != nullptr)
    request.before_commit = [this] { inputs_.reporter->before_commit(); };
  const bool waits = kind == SaveKind::kLast || !config.async;
  const std::optional<SaveResult> failed =
      writer_.begin(request, waits ? Meanwhile::kStay : Meanwhile::kChange);
  begun_save_ = progress_.step;
  stall_seconds_ = seconds_since(begin);
  last_save_ = Clock::now();
  if (failed) return end_save(*failed);
  if (waits) finish_save();
}

void Trainer::advance_save() {
  if (!writer_.busy()) return;
  std::vector<WriterState> states;
  for (const RankReport& report : reports_) states.push_back(report.writer);
  if (const std::optional<SaveResult> result = writer_.advance(states)) end_save(*result);
}

void Trainer::finish_save() {
  const Clock::time_point begin = Clock::now();
  const SaveResult result = writer_.finish();
  stall_seconds_ += seconds_since(begin);
  end_save(result);
}

void Trainer::finish_save_under_way() {
  if (!writer_.busy()) return;
  const Span span(runtime_.trace, Phase::kCheckpoint);
  finish_save();
}

void Trainer::end_save(const SaveResult& result) {
  last_save_failed_ = !result.saved();
  failed_saves_ += last_save_failed_;
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
}

void Trainer::write_end(EndReason reason) {
  ended_ = true;
  if (inputs_.reporter == nullptr) return;
  EndLine line;
  line.step = progress_.step;
  line.reason = reason;
  line.failed_saves = failed_saves_;
  if (runtime_.mesh.extent(Axis::kPipeline) > 1) {
    line.bubble_simulated = simulate(runtime_.pipeline.plan, runtime_.pipeline.times).bubble_rate;
    if (pipeline_span_ns_ > 0) line.bubble_measured = 1 - pipeline_busy_ns_ / pipeline_span_ns_;
  }
  inputs_.reporter->end(line);
}

ExitCode Trainer::end(EndReason reason, ExitCode code) {
  finish_save_under_way();
  write_end(reason);
  if (last_save_failed_) {
    throw SharedError(ExitCode::kData,
                      "the last save of the run failed (its steps are lost when the program ends). "
                      "Make room or mend the "
                      "folder, then start the run again: it goes on from the newest saved step.");
  }
  return code;
}

}  // namespace trireme
