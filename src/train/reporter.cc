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

Reporter::Reporter(const RunConfig& config, Begin begin, Total total, std::int64_t world)
    : log_interval_(config.log.interval_steps),
      begin_(begin),
      total_(total),
      metrics_(in_run(config, "metrics.jsonl"), begin.step),
      pages_(config.run.directory,
             config.log.report ? RunPages::Report::kYes : RunPages::Report::kNo) {
  if (config.log.command) {
    command_.emplace(*config.log.command);
    metrics_.also_write_to([this](std::string_view line) { command_->send(line); });
  }
  if (config.log.tensorboard)
    tensorboard_.emplace(in_run(config, "tensorboard"), begin.step, begin.consumed_samples, world);
  if (config.log.prometheus) {
    PrometheusState state;
    state.run = config.run.directory;
    state.world = world;
    state.steps_planned = total.steps;
    prometheus_.emplace(*config.log.prometheus, std::move(state));
    if (prometheus_->port() > 0)
      log_info("for Prometheus: http://127.0.0.1:{}/metrics", prometheus_->port());
  }
}

void Reporter::start(const StartLine& line) {
  if (prometheus_) prometheus_->start(line);
  predicted_ = line.predicted;
  metrics_.append(line);
  metrics_.flush();
}

void Reporter::resume(const ResumeLine& line) { metrics_.append(line); }

void Reporter::step(const StepLine& line) {
  metrics_.append(line);
  if (tensorboard_) tensorboard_->append(line);
  if (prometheus_) prometheus_->step(line);
  means_.add(line);
  seconds_ += line.step_seconds;
  interval_seconds_ += line.step_seconds;
  interval_tokens_ += line.tokens_per_second * line.step_seconds;
  if (line.step == begin_.step + 1) {
    log_info("the first step ended {:.2f} s after the process began", process_age_seconds());
  }
  // The first line soon, so that a person sees life.
  const bool due =
      line.step % log_interval_ == 0 || line.step == total_.steps || line.step == begin_.step + 1;
  if (!due) return;
  // A step of a larger batch takes longer.
  const double left = seconds_ *
                      static_cast<double>(total_.consumed_samples - line.consumed_samples) /
                      static_cast<double>(line.consumed_samples - begin_.consumed_samples);
  StepLine shown = line;
  shown.tokens_per_second =
      std::exchange(interval_tokens_, 0) / std::exchange(interval_seconds_, 0);
  if (line.mfu && line.tokens_per_second > 0)
    *shown.mfu *= shown.tokens_per_second / line.tokens_per_second;
  log_info_text(step_text(shown, total_.steps, left));
  metrics_.flush();
  if (tensorboard_) tensorboard_->flush();
  if (prometheus_) prometheus_->write_file();
}

void Reporter::skip(const SkipLine& line) {
  if (prometheus_) prometheus_->skip();
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
  if (prometheus_) prometheus_->evaluation(line);
  log_info_text(evaluation_text(line, total_.steps));
}

void Reporter::sample(const SampleLine& line) {
  metrics_.append(line);
  log_info_text(sample_text(line, total_.steps));
}

void Reporter::evaluated() {
  metrics_.flush();
  if (tensorboard_) tensorboard_->flush();
  pages_.redraw();
}

void Reporter::checkpoint(const CheckpointLine& line) {
  if (prometheus_) prometheus_->checkpoint(line);
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
  pages_.redraw();
  if (command_) command_->close(kCommandPatience);
}

}  // namespace trireme
