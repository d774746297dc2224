#include "train/trainer.h"

#include <limits>
#include <utility>

#include "base/human_format.h"
#include "base/log.h"
#include "device/gpu.h"
#include "guard/watchdog.h"
#include "model/flops.h"
#include "pipeline/simulate.h"
#include "train/device_choice.h"
#include "train/reporter.h"

namespace trireme {

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

EnergyMeter::Sources energy_of(const Runtime& runtime) {
  EnergyMeter::Sources sources;
  sources.packages = runtime.launch.local_rank() == 0;
  if (runtime.context.on_gpu())
    sources.gpu_bus_id = gpu::info(runtime.context.device().index).pci_bus_id;
  return sources;
}

}  // namespace

Trainer::Trainer(Runtime& runtime, TrainerInputs inputs, RunProgress progress)
    : runtime_(runtime),
      inputs_(std::move(inputs)),
      progress_(progress),
      flops_per_token_(model_flops_per_token(runtime.model, runtime.config.data.sequence_length)),
      peak_tflops_(peak_tflops(runtime.config, runtime.context.device())),
      trace_steps_(runtime),
      stopping_(runtime.config, runtime.replica().rank() == 0),
      energy_(energy_of(runtime)),
      saver_(runtime, inputs_, progress_),
      evaluation_(runtime, inputs_, progress_),
      steps_(runtime, *inputs_.loader,
             {progress.consumed_samples, progress.step, inputs_.prepared.run.steps,
              [this](RankReport& mine) {
                mine.stop_reason = stopping_.look();
                saver_.report(mine);
                report_energy(mine);
              },
              [this](std::int64_t step) { return stands_still_behind(step); },
              runtime.config.stability.skip_steps, &progress_.spikes}) {
  if (runtime.model.has_experts() && runtime.replica().rank() == 0)
    expert_load_.emplace(runtime.model, runtime.config.run.directory);
  if (runtime.replica().rank() == 0 && !energy_.refused().empty()) log_info_text(energy_.refused());
}

void Trainer::report_energy(RankReport& mine) {
  if (!energy_.reads()) return;
  energy_.poll();
  ++reports_;
  const bool last = progress_.step + 1 == inputs_.prepared.run.steps;
  if (reports_ % runtime_.config.log.interval_steps != 0 && !last) return;
  mine.microjoules = static_cast<std::int64_t>(energy_.take_joules() * 1e6);
  mine.meters = 1;
}

RunEnd Trainer::run() {
  const auto give_up = [this](bool all_ranks_are_here) {
    if (ended_) return;
    if (all_ranks_are_here) saver_.finish();
    write_end(EndReason::kError);
  };
  try {
    return loop();
  } catch (const SharedError&) {
    give_up(true);
    throw;
  } catch (const DeviceError& fault) {
    write_end(EndReason::kError);
    if (pipeline_.first_step) throw;
    throw Error(ExitCode::kDevice,
                fmt::format("{}. This was after step {}: started again, the run goes on at its "
                            "newest checkpoint",
                            fault.what(), progress_.step));
  } catch (...) {
    give_up(runtime_.replica().size() == 1);
    throw;
  }
}

RunEnd Trainer::loop() {
  for (;;) {
    trace_steps_.before(progress_.step + 1);
    const CommittedStep step = steps_.next();
    if (const std::optional<RunEnd> over = end_step(step)) return *over;
  }
}

std::optional<RunEnd> Trainer::end_step(const CommittedStep& step) {
  progress_.step = step.step;
  const std::int64_t samples = inputs_.prepared.run.ramp.size_at(progress_.consumed_samples);
  progress_.consumed_samples += samples;
  // A batch without targets, or one that is passed over, says nothing of the weights.
  if (step.finite()) progress_.skipped_in_a_row = 0;
  if (step.skip && step.skip->not_finite()) ++progress_.skipped_in_a_row;
  progress_.spikes.add(step.loss, step.facts.norm);
  if (runtime_.noise && step.finite()) measure_noise(step.facts, samples);
  if (!std::exchange(pipeline_.first_step, false)) {
    pipeline_.span_ns += step.facts.longest_span_ns;
    pipeline_.busy_ns += step.facts.busy_ns;
  }
  if (expert_load_ && !step.skip) expert_load_->add(*step.facts.experts);
  if (inputs_.watchdog != nullptr) inputs_.watchdog->step_finished(step.step, step.times.seconds());
  if (inputs_.reporter != nullptr) report_step(step, samples);
  if (progress_.skipped_in_a_row >= kSkipsMax) end_diverged(*step.skip);
  return after_step(step.facts);
}

void Trainer::measure_noise(const StepFacts& facts, std::int64_t samples) {
  // Every rank that sees other tokens has measured a batch of its own; a context rank's is part of
  // its samples. Gradients are of the mean over the whole batch, those of a part that much smaller.
  const auto sources = static_cast<double>(runtime_.mesh.extent(Axis::kData)),
             parts = static_cast<double>(runtime_.mesh.extent(Axis::kContext));
  NoiseSample sample;
  sample.small = static_cast<double>(inputs_.prepared.run.passes.micro) / parts;
  sample.large = static_cast<double>(samples);
  const double times = sample.large / sample.small;
  sample.small_square = facts.micro_batch_square * times * times / (sources * parts);
  sample.large_square = facts.step_square;
  progress_.noise.add(sample);
}

void Trainer::end_diverged(const SkipLine& last) {
  saver_.finish();
  write_end(EndReason::kDiverged);
  throw SharedError(
      ExitCode::kDiverged,
      fmt::format(
          "{} steps in a row were not finite (the last: {}, first in {} on rank {}, step {}). "
          "Lower optimizer.lr, lengthen lr_schedule.warmup_steps, or go back to an older "
          "checkpoint with run.resume.{}",
          kSkipsMax, last.reason, last.tensor, last.rank, progress_.step,
          saver_.last_failed() ? " The last save failed as well (its cause stands above)." : ""));
}

bool Trainer::stands_still_behind(std::int64_t step) const {
  return step == runtime_.config.run.exit_at_step || evaluation_.is_due_behind(step) ||
         trace_steps_.turns_behind(step);
}

std::optional<RunEnd> Trainer::after_step(const StepFacts& facts) {
  const std::int64_t stop = facts.stop_reason;
  trace_steps_.after(progress_.step);
  saver_.advance(steps_.reports());
  // A stop may not wait for an evaluation, whose findings a second save keeps.
  const bool stopped = stop != Stopping::kNone;
  std::optional<double> loss;
  if (stopped) saver_.save(RunSaver::Kind::kLast, loss);
  const bool evaluated = evaluation_.is_due_behind(progress_.step);
  if (evaluated) loss = evaluation_.run();
  const bool exit_now = progress_.step == runtime_.config.run.exit_at_step;
  const bool early = evaluated && evaluation_.stops_early();
  if (finished() || exit_now || early || stopped) {
    saver_.save(RunSaver::Kind::kLast, loss);
  } else {
    saver_.save_if_due(facts.save_is_late, loss);
  }
  if (expert_load_ && saver_.begun_step() == progress_.step) expert_load_->write();
  if (finished()) return end(EndReason::kSteps);
  if (stop >= Stopping::kSignal) return end(EndReason::kSignal, stop - Stopping::kSignal);
  if (stop == Stopping::kTime) return end(EndReason::kTime);
  if (stop == Stopping::kStopFile) {
    if (runtime_.replica().rank() == 0) stopping_.remove_stop_file();
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

void Trainer::report_step(const CommittedStep& step, std::int64_t samples) {
  const std::int64_t length = inputs_.prepared.config.data.sequence_length;
  const bool computed = !step.skip || step.skip->reason != kPassedOver;
  const auto tokens = computed ? static_cast<double>(samples * length) : 0.0;
  const StepTimes& times = step.times;
  StepLine line;
  line.step = step.step;
  line.loss = step.loss;
  line.grad_norm = step.facts.norm;
  if (runtime_.config.stability.z_loss != 0) line.logit_z_loss = step.z_loss;
  if (runtime_.noise) line.noise_scale = progress_.noise.samples().value_or(kNaN);
  line.lr = step.lr;
  line.consumed_samples = progress_.consumed_samples;
  line.consumed_tokens = progress_.consumed_samples * length;
  line.step_seconds = times.seconds();
  line.tokens_per_second = tokens / line.step_seconds;
  line.tflops_per_second =
      tokens * static_cast<double>(flops_per_token_) / line.step_seconds * 1e-12;
  if (peak_tflops_) line.mfu = line.tflops_per_second / (*peak_tflops_ * runtime_.replica().size());
  line.memory_bytes = step.facts.memory_bytes;
  line.joules = step.facts.joules;
  if (const auto& experts = step.facts.experts)
    line.experts = {experts->aux_loss, experts->z_loss, experts->load};
  else if (runtime_.model.has_experts())
    line.experts = {kNaN, kNaN, std::vector<double>(runtime_.model.layers.size(), kNaN)};
  line.time.forward_backward = times.forward_backward_seconds();
  for (const Axis axis : kTrafficAxes) {
    const bool is_there = axis == Axis::kExpert ? runtime_.part.cut.expert.ranks() > 1
                                                : runtime_.mesh.extent(axis) > 1;
    if (axis == Axis::kData || is_there)
      line.time.communication_exposed.emplace_back(name_of(axis), times.exposed_seconds(axis));
  }
  line.time.data_wait = times.seconds_of(Phase::kData);
  line.time.optimizer = times.seconds_of(Phase::kOptimizer);
  if (!step.blocks.empty()) inputs_.reporter->blocks({step.step, step.blocks});
  inputs_.reporter->step(line);
  if (step.skip) inputs_.reporter->skip(*step.skip);
}

void Trainer::write_end(EndReason reason) {
  ended_ = true;
  if (inputs_.reporter == nullptr) return;
  EndLine line;
  line.step = progress_.step;
  line.reason = reason;
  line.failed_saves = saver_.failed_saves();
  if (runtime_.config.parallel.speculative_step) line.undone_steps = steps_.undone_steps();
  if (runtime_.mesh.extent(Axis::kPipeline) > 1) {
    line.bubble_simulated =
        simulate(runtime_.pipeline.schedule(), runtime_.pipeline.times).bubble_rate;
    if (pipeline_.span_ns > 0) line.bubble_measured = 1 - pipeline_.busy_ns / pipeline_.span_ns;
  }
  inputs_.reporter->end(line);
}

RunEnd Trainer::end(EndReason reason, std::int64_t signal) {
  saver_.finish();
  write_end(reason);
  if (saver_.last_failed()) {
    throw SharedError(ExitCode::kData,
                      "the last save of the run failed (its steps are lost when the program ends). "
                      "Make room or mend the "
                      "folder, then start the run again: it goes on from the newest saved step.");
  }
  return run_end(reason, signal);
}

}  // namespace trireme
