#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/human_format.h"
#include "base/log.h"
#include "optim/lr_schedule.h"
#include "pipeline/simulate.h"
#include "train/device_choice.h"
#include "train/evaluator.h"
#include "train/samples.h"
#include "train/watchdog.h"

namespace trireme {

using Clock = std::chrono::steady_clock;

namespace {
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

StepReports::Exchange exchange_of(const RunConfig& config) {
  return config.parallel.speculative_step ? StepReports::Exchange::kBeside
                                          : StepReports::Exchange::kBlocking;
}
}  // namespace

Trainer::Trainer(Runtime& runtime, TrainerInputs inputs, RunProgress progress)
    : runtime_(runtime),
      inputs_(std::move(inputs)),
      progress_(progress),
      step_(runtime),
      trace_steps_(runtime),
      stopping_(runtime.config, runtime.world().rank() == 0),
      lookahead_(inputs_.loader->lookahead()),
      handed_out_(progress.step),
      reports_(runtime.world(), exchange_of(runtime.config)),
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

RunEnd Trainer::run() {
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

RunEnd Trainer::loop() {
  look_ahead();
  taken_ = Clock::now();
  for (;;) {
    pass();
    if (ahead_) {
      learn();
      if (!nothing_clipped_) {
        go_back();
        continue;
      }
      if (const std::optional<RunEnd> over = end_step()) return *over;
    }
    tell();
    if (may_run_ahead()) {
      run_ahead();
      continue;
    }
    learn();
    update_or_skip();
    if (const std::optional<RunEnd> over = end_step()) return *over;
  }
}

void Trainer::look_ahead() {
  inputs_.loader->seek(progress_.consumed_samples);
  for (int i = 0; i < lookahead_; ++i) {
    std::int64_t& count = at(next_step() + i).target_count = targets_of(next_step() + i);
    runtime_.channels.peers->sum(std::span(&count, 1));
  }
}

std::int64_t Trainer::targets_of(std::int64_t step) {
  if (step > inputs_.steps) return 0;  // an order may end with the run
  const Span span(runtime_.trace, Phase::kData);
  return inputs_.loader->target_count(static_cast<int>(step - handed_out_));
}

void Trainer::pass() {
  const std::int64_t k = next_step() + (ahead_ ? 1 : 0);
  trace_steps_.before(k);
  Unsettled& step = at(k);
  if (handed_out_ < k) {
    const Span span(runtime_.trace, Phase::kData);
    step.batch = inputs_.loader->next();
    handed_out_ = k;
  }
  step_.forward_backward(step.batch.micro_batches, step.target_count);
  loss_sum_ = step_.loss_sum();
}

void Trainer::tell() {
  // Places of the tensor axis and pipeline ranks see the same tokens: one counts them. Losses are
  // where the model ends.
  const bool first_place = runtime_.part.cut.tensor.index == 0;
  const bool counts = first_place && runtime_.pipeline_rank() == 0;
  const double late_seconds = runtime_.config.checkpoint.interval_minutes * 60;
  const Executor::Occupation occupation = runtime_.executor.occupation();
  RankReport mine;
  mine.squares = step_.sum_of_squares().words();
  mine.loss_sum = first_place ? loss_sum_ : 0;
  if (counts) mine.target_count = targets_of(next_step() + lookahead_);
  mine.stop_reason = stopping_.look();
  mine.save_is_late =
      runtime_.world().rank() == 0 && late_seconds > 0 && seconds_since(last_save_) >= late_seconds;
  mine.memory_bytes = memory_in_use(runtime_.context.device());
  mine.span_ns = occupation.span_ns;
  mine.busy_ns = occupation.busy_ns;
  mine.writer = writer_.state();
  const Span span(runtime_.trace, Phase::kOptimizer);
  reports_.start(mine);
}

void Trainer::learn() {
  const Span span(runtime_.trace, Phase::kOptimizer);
  const std::int64_t k = next_step();
  facts_ = reports_.finish();
  at(k + lookahead_).target_count = facts_.target_count;
  line_.loss = facts_.loss_sum / static_cast<double>(std::max<std::int64_t>(1, at(k).target_count));
  line_.grad_norm = facts_.norm;
  nothing_clipped_ =
      std::isfinite(line_.loss) && std::isfinite(line_.grad_norm) &&
      clip_coefficient(line_.grad_norm, runtime_.config.optimizer.clip_grad_norm) == 1;
}

bool Trainer::may_run_ahead() const {
  const std::int64_t k = next_step();
  const bool stands_still = k >= inputs_.steps || k == runtime_.config.run.exit_at_step ||
                            evaluates_behind(k) || trace_steps_.end_with(k);
  return runtime_.config.parallel.speculative_step && nothing_clipped_ && !stands_still;
}

double Trainer::learning_rate_of_step() const {
  return learning_rate(runtime_.config.lr_schedule, runtime_.config.optimizer.lr, inputs_.steps,
                       next_step());
}

void Trainer::run_ahead() {
  step_.update_ahead(learning_rate_of_step());
  ahead_ = true;
  take_times();
}

void Trainer::go_back() {
  step_.take_back();
  ahead_ = false;
  ++undone_steps_;
}

void Trainer::update_or_skip() {
  if (std::isfinite(line_.loss) && std::isfinite(line_.grad_norm)) {
    step_.update(learning_rate_of_step(), line_.grad_norm);
  } else {
    skip_ = find_skip();
  }
  take_times();
}

std::optional<RunEnd> Trainer::end_step() {
  const Clock::time_point begin = Clock::now();
  line_.lr = learning_rate_of_step();
  ++progress_.step;
  progress_.consumed_samples += inputs_.global_batch;
  progress_.skipped_in_a_row = skip_ ? progress_.skipped_in_a_row + 1 : 0;
  ahead_ = false;
  add_pipeline_times();
  if (inputs_.watchdog != nullptr)
    inputs_.watchdog->step_finished(progress_.step, line_.step_seconds);
  report_step();
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
            kSkipsMax, skip_->reason, skip_->tensor, skip_->rank, progress_.step,
            last_save_failed_ ? " The last save failed as well (its cause stands above)." : ""));
  }
  const std::optional<RunEnd> over = stand_behind_step();
  line_ = {};
  skip_.reset();
  taken_ += Clock::now() - begin;  // of no step
  return over;
}

std::optional<RunEnd> Trainer::stand_behind_step() {
  const RunConfig::Run& run = runtime_.config.run;
  const std::int64_t stop = facts_.stop_reason;
  trace_steps_.after(progress_.step);
  advance_save();
  // What asked to stop may not wait for an evaluation. What that finds is saved by a second save,
  // so that a run which goes on from here knows it.
  const bool stopped = stop != Stopping::kNone;
  if (stopped) save(SaveKind::kLast);
  const bool evaluated = evaluates_behind(progress_.step);
  if (evaluated) evaluate();
  const bool exit_now = run.exit_at_step && progress_.step == *run.exit_at_step;
  const bool early = evaluated && stops_early();
  if (finished() || exit_now || early || stopped) {
    save(SaveKind::kLast);
  } else if (save_due()) {
    save(SaveKind::kInterval);
  } else if (best_is_new()) {
    save(SaveKind::kBest);
  }
  unsaved_loss_.reset();
  if (finished()) return end(EndReason::kSteps);
  if (stop >= Stopping::kSignal) return end(EndReason::kSignal);
  if (stop == Stopping::kTime) return end(EndReason::kTime);
  if (stop == Stopping::kStopFile) {
    if (runtime_.world().rank() == 0) stopping_.remove_stop_file();
    return end(EndReason::kStopFile);
  }
  if (exit_now) return end(EndReason::kExitAtStep);
  if (early) {
    log_info("{} in a row found no loss below {:.4f}: the run ends here (evaluation.stop_after)",
             counted(progress_.best.evaluations_since, "evaluation"), progress_.best.loss);
    return end(EndReason::kEarlyStop);
  }
  return std::nullopt;
}

SkipLine Trainer::find_skip() {
  SkipLine skip;
  skip.step = next_step();
  skip.reason = std::isfinite(line_.loss) ? "non-finite gradient" : "non-finite loss";
  const Unsettled& step = at(skip.step);
  const std::string tensor = step_.find_non_finite(step.batch.micro_batches, step.target_count);
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

void Trainer::add_pipeline_times() {
  // The first step allocates.
  if (std::exchange(first_step_, false)) return;
  pipeline_span_ns_ += facts_.longest_span_ns;
  pipeline_busy_ns_ += facts_.busy_ns;
}

void Trainer::take_times() {
  Trace& trace = runtime_.trace;
  const auto seconds = [&](Phase phase) {
    return static_cast<double>(trace.take_total_ns(phase)) * 1e-9;
  };
  StepTime& time = line_.time;
  // What the passes wait for other ranks is told by axis below, once.
  time.forward_backward += seconds(Phase::kForward) + seconds(Phase::kBackwardInput) +
                           seconds(Phase::kBackwardWeight) -
                           static_cast<double>(step_.take_waits_in_passes_ns()) * 1e-9;
  const ByAxis now = runtime_.channels.exposed_ns();
  const ByAxis since = now - std::exchange(exposed_, now);
  std::size_t row = 0;
  for (const Axis axis : kAxes) {
    if (axis != Axis::kData && runtime_.mesh.extent(axis) == 1) continue;
    if (row == time.communication_exposed.size())
      time.communication_exposed.emplace_back(name_of(axis), 0);
    time.communication_exposed[row++].second += static_cast<double>(since[axis]) * 1e-9;
  }
  time.data_wait += seconds(Phase::kData);
  time.optimizer += seconds(Phase::kOptimizer);
  line_.step_seconds += seconds_since(std::exchange(taken_, Clock::now()));
}

void Trainer::report_step() {
  if (inputs_.reporter == nullptr) return;
  const auto tokens = static_cast<double>(inputs_.global_batch * inputs_.sequence_length);
  line_.step = progress_.step;
  line_.consumed_samples = progress_.consumed_samples;
  line_.consumed_tokens = progress_.consumed_samples * inputs_.sequence_length;
  line_.tokens_per_second = tokens / line_.step_seconds;
  line_.tflops_per_second =
      tokens * static_cast<double>(inputs_.flops_per_token) / line_.step_seconds * 1e-12;
  if (inputs_.peak_tflops) line_.mfu = line_.tflops_per_second / *inputs_.peak_tflops;
  line_.memory_bytes = facts_.memory_bytes;
  inputs_.reporter->step(line_);
  if (skip_) inputs_.reporter->skip(*skip_);
}

bool Trainer::evaluates_behind(std::int64_t step) const {
  const std::int64_t interval = runtime_.config.evaluation.interval_steps;
  return (!inputs_.validation.empty() || inputs_.samples != nullptr) &&
         (step >= inputs_.steps || (interval > 0 && step % interval == 0));
}

void Trainer::evaluate() {
  std::vector<SetLoss> losses;
  for (const ValidationSet& set : inputs_.validation) {
    const EvaluationResult result = trireme::evaluate(runtime_, *set.batches);
    losses.push_back({set.name, result.loss});
    if (inputs_.reporter == nullptr) continue;
    inputs_.reporter->evaluation(
        {progress_.step, result.loss, result.perplexity(), result.tokens, set.name});
  }
  if (!losses.empty()) take_loss(losses);
  if (inputs_.samples != nullptr) {
    for (const SampleLine& line :
         inputs_.samples->continue_prompts(progress_.step, inputs_.watchdog)) {
      inputs_.reporter->sample(line);
    }
  }
  if (inputs_.reporter != nullptr) inputs_.reporter->evaluated();
  // Its waits and passes are of no step.
  exposed_ = runtime_.channels.exposed_ns();
  runtime_.trace.take_total_ns(Phase::kForward);
}

void Trainer::take_loss(std::span<const SetLoss> losses) {
  const RunConfig& config = runtime_.config;
  const std::optional<std::string>& watch = config.evaluation.watch;
  const double loss = watched_loss(losses, watch.value_or(""));
  progress_.best.take(loss);
  if (!config.checkpoint.keep_best && config.evaluation.stop_after == 0) return;
  unsaved_loss_ = loss;
  if (losses.size() == 1) return;
  log_info("the loss that decides what is better is {:.4f}, {}", loss,
           watch ? "that of " + *watch : fmt::format("the mean of {} sets", losses.size()));
}

bool Trainer::best_is_new() const {
  const BestLoss::Kept& standing = kept_ ? *kept_ : progress_.best.kept;
  return runtime_.config.checkpoint.keep_best && unsaved_loss_ && *unsaved_loss_ < standing.loss;
}

bool Trainer::stops_early() const {
  const std::int64_t patience = runtime_.config.evaluation.stop_after;
  return patience > 0 && progress_.best.evaluations_since >= patience;
}

bool Trainer::save_due() const {
  const std::int64_t interval = runtime_.config.checkpoint.interval_steps;
  return facts_.save_is_late || (interval > 0 && progress_.step % interval == 0);
}

void Trainer::save(SaveKind kind) {
  if (begun_save_ == progress_.step && !unsaved_loss_) return;
  const RunConfig::Checkpoint& config = runtime_.config.checkpoint;
  const Span span(runtime_.trace, Phase::kCheckpoint);
  if (writer_.busy()) {
    if (kind != SaveKind::kLast && config.when_busy == WhenBusy::kSkip) {
      log_info("step {} is not saved: step {} is still being written (checkpoint.when_busy)",
               progress_.step, writer_.step());
      return;
    }
    finish_save();
  }
  const Clock::time_point begin = Clock::now();
  if (inputs_.reporter != nullptr) inputs_.reporter->before_save();
  SaveRequest request = inputs_.save;
  RunProgress saved = progress_;
  kept_.reset();
  if (best_is_new()) {
    if (saved.best.kept.alone) request.retention.superseded = saved.best.kept.step;
    saved.best.kept = {*unsaved_loss_, progress_.step, kind == SaveKind::kBest};
    kept_ = saved.best.kept;
  }
  if (config.keep_best) request.retention.best = saved.best.kept.step;
  unsaved_loss_.reset();
  State state = runtime_.store.state();
  state.scalars = inputs_.scalars(saved, runtime_.optimizer->applied_updates());
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
  for (const RankReport& report : reports_.all()) states.push_back(report.writer);
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

void Trainer::write_end(EndReason reason) {
  ended_ = true;
  if (inputs_.reporter == nullptr) return;
  EndLine line;
  line.step = progress_.step;
  line.reason = reason;
  line.failed_saves = failed_saves_;
  if (runtime_.config.parallel.speculative_step) line.undone_steps = undone_steps_;
  if (runtime_.mesh.extent(Axis::kPipeline) > 1) {
    line.bubble_simulated = simulate(runtime_.pipeline.plan, runtime_.pipeline.times).bubble_rate;
    if (pipeline_span_ns_ > 0) line.bubble_measured = 1 - pipeline_busy_ns_ / pipeline_span_ns_;
  }
  inputs_.reporter->end(line);
}

RunEnd Trainer::end(EndReason reason) {
  finish_save_under_way();
  write_end(reason);
  if (last_save_failed_) {
    throw SharedError(ExitCode::kData,
                      "the last save of the run failed (its steps are lost when the program ends). "
                      "Make room or mend the "
                      "folder, then start the run again: it goes on from the newest saved step.");
  }
  return run_end(reason, facts_.stop_reason - Stopping::kSignal);
}

}  // namespace trireme
