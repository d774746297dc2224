#include "train/reporter.h"

#include <filesystem>
#include <utility>

#include "base/log.h"
#include "guard/lock.h"
#include "telemetry/console.h"

namespace trireme {

namespace {
/// For log.command to take the last lines, and then to end: what stops a run may kill it soon.
constexpr std::chrono::seconds kCommandPatience{5};

std::filesystem::path in_run(const RunConfig& config, const char* name) {
  return std::filesystem::path(config.run.directory) / name;
}
}  // namespace

Reporter::Reporter(const RunConfig& config, Begin begin, std::int64_t steps_total,
                   std::int64_t world)
    : log_interval_(config.log.interval_steps),
      steps_total_(steps_total),
      first_step_(begin.step),
      metrics_(in_run(config, "metrics.jsonl"), begin.step),
      plot_(in_run(config, "metrics.jsonl"), in_run(config, "loss.svg"),
            std::filesystem::path(config.run.directory).filename().string()) {
  if (config.log.command) {
    command_.emplace(*config.log.command);
    metrics_.also_write_to([this](std::string_view line) { command_->send(line); });
  }
  if (config.log.tensorboard)
    tensorboard_.emplace(in_run(config, "tensorboard"), begin.step, begin.consumed_samples, world);
}

void Reporter::start(const StartLine& line) {
  predicted_ = line.predicted;
  metrics_.append(line);
  metrics_.flush();
}

void Reporter::resume(const ResumeLine& line) { metrics_.append(line); }

void Reporter::step(const StepLine& line) {
  metrics_.append(line);
  if (tensorboard_) tensorboard_->append(line);
  means_.add(line);
  seconds_ += line.step_seconds;
  ++steps_;
  interval_seconds_ += line.step_seconds;
  interval_tokens_ += line.tokens_per_second * line.step_seconds;
  if (line.step == first_step_ + 1) {
    log_info("the first step ended {:.2f} s after the process began", process_age_seconds());
  }
  // The first line soon, so that a person sees life.
  const bool due =
      line.step % log_interval_ == 0 || line.step == steps_total_ || line.step == first_step_ + 1;
  if (!due) return;
  const double left =
      seconds_ / static_cast<double>(steps_) * static_cast<double>(steps_total_ - line.step);
  StepLine shown = line;
  shown.tokens_per_second =
      std::exchange(interval_tokens_, 0) / std::exchange(interval_seconds_, 0);
  if (line.mfu && line.tokens_per_second > 0)
    *shown.mfu *= shown.tokens_per_second / line.tokens_per_second;
  log_info_text(step_text(shown, steps_total_, left));
  metrics_.flush();
  if (tensorboard_) tensorboard_->flush();
}

void Reporter::skip(const SkipLine& line) {
  metrics_.append(line);
  metrics_.flush();
  if (line.not_finite()) {
    log_warning("step {} skipped: {} (first in {}, rank {})", line.step, line.reason, line.tensor,
                line.rank);
  } else if (line.reason == kNoTargets) {
    log_warning("step {} skipped: no token of its batch counts as a target (PREFIX.mask)",
                line.step);
  } else if (line.reason == kPassedOver) {
    log_info("step {} passed over (stability.skip_steps)", line.step);
  } else {
    log_warning("step {} skipped: its {} is a spike (stability.skip_spikes)", line.step,
                line.reason == kLossSpike ? "loss" : "gradient norm");
  }
}

void Reporter::evaluation(const EvaluationLine& line) {
  metrics_.append(line);
  if (tensorboard_) tensorboard_->append(line);
  log_info_text(evaluation_text(line, steps_total_));
}

void Reporter::sample(const SampleLine& line) {
  metrics_.append(line);
  log_info_text(sample_text(line, steps_total_));
}

void Reporter::evaluated() {
  metrics_.flush();
  if (tensorboard_) tensorboard_->flush();
  plot_.redraw();
}

void Reporter::checkpoint(const CheckpointLine& line) {
  metrics_.append(line);
  metrics_.flush();
  if (line.error) {
    log_warning("step {} was not saved: {} (training goes on; the last saved step stands)",
                line.step, *line.error);
  } else {
    log_info("saved step {} to {} in {:.2f} s", line.step, line.path, line.save_seconds);
  }
}

void Reporter::end(EndLine line) {
  line.joules = means_.joules();
  if (predicted_ && means_.steps() > 0) {
    line.step_seconds = means_.step_seconds();
    line.predicted_step_seconds = predicted_->step_seconds;
    log_info_text(prediction_text(*predicted_, means_));
  }
  const std::string energy = energy_text(predicted_, means_);
  if (!energy.empty()) log_info_text(energy);
  metrics_.append(line);
  metrics_.sync();
  if (tensorboard_) tensorboard_->flush();
  plot_.redraw();
  if (command_) command_->close(kCommandPatience);
}

}  // namespace trireme
