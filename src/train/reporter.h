#pragma once

#include <chrono>
#include <optional>

#include "config/run_config.h"
#include "telemetry/metrics_command.h"
#include "telemetry/metrics_file.h"
#include "telemetry/prediction.h"
#include "telemetry/prometheus_exporter.h"
#include "telemetry/run_pages.h"
#include "telemetry/tensorboard.h"

namespace trireme {

/// All that a run says of its progress: metrics.jsonl, TensorBoard, loss.svg, report.html,
/// Prometheus, console. On rank 0.
class Reporter {
 public:
  /// Where the run goes on from, zeros for a fresh start.
  struct Begin {
    std::int64_t step = 0, consumed_samples = 0;
  };
  /// What the run has done at its end.
  struct Total {
    std::int64_t steps = 0, consumed_samples = 0;
  };
  /// DataError where files cannot be opened, ConfigError where log.command cannot be started,
  /// EnvironmentError where log.prometheus.port cannot be had.
  Reporter(const RunConfig& config, Begin begin, Total total, std::int64_t world);

  void start(const StartLine& line);
  void resume(const ResumeLine& line);
  /// Console and flush at each log interval and the last step, with rates since the last line.
  void step(const StepLine& line);
  void skip(const SkipLine& line);
  void blocks(const BlocksLine& line) { metrics_.append(line); }
  void evaluation(const EvaluationLine& line);
  void sample(const SampleLine& line);
  /// The last line of an evaluation has come.
  void evaluated();
  /// The metrics must be on disk before the checkpoint that they lead to commits: first they leave
  /// this program, then, on whatever thread that commits, they are made durable.
  void before_save() { metrics_.flush(); }
  void before_commit() { metrics_.sync_flushed(); }
  void checkpoint(const CheckpointLine& line);
  /// With the means of this start's steps, beside what was predicted.
  void end(EndLine line);

 private:
  std::int64_t log_interval_;
  Begin begin_;
  Total total_;
  MetricsFile metrics_;
  std::optional<MetricsCommand> command_;
  std::optional<TensorBoardWriter> tensorboard_;
  RunPages pages_;
  std::optional<PrometheusExporter> prometheus_;
  std::optional<PredictedTime> predicted_;
  StepMeans means_;
  double seconds_ = 0;                                 // of the steps reported so far
  double interval_seconds_ = 0, interval_tokens_ = 0;  // since the console's last line
};

}  // namespace trireme
