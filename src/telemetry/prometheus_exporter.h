#pragma once
// log.prometheus: what a run tells a Prometheus, by GET /metrics, by a file for node_exporter's
// textfile collector, or both. A thread of its own writes and answers, so that no step waits for a
// disk or a client.

#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>

#include "base/file.h"
#include "config/run_config.h"
#include "telemetry/metrics_port.h"
#include "telemetry/prometheus_text.h"

namespace trireme {

class PrometheusExporter {
 public:
  /// EnvironmentError where the port cannot be had, DataError where the file cannot be written:
  /// before step 0 a run may be refused. Later a file that is refused is warned of once.
  PrometheusExporter(const Prometheus& config, PrometheusState begin);
  /// The file then says that the run has ended, and nobody listens.
  ~PrometheusExporter();
  PrometheusExporter(const PrometheusExporter&) = delete;
  PrometheusExporter& operator=(const PrometheusExporter&) = delete;

  /// 0 where there is none.
  [[nodiscard]] std::int64_t port() const { return port_ ? port_->port() : 0; }

  void start(const StartLine& line);
  void step(const StepLine& line);
  void skip();
  void evaluation(const EvaluationLine& line);
  void checkpoint(const CheckpointLine& line);
  /// At each log interval: the file gets what is known now, soon.
  void write_file();

 private:
  void run();
  [[nodiscard]] std::string text();
  void replace_file();
  void wake();

  std::filesystem::path file_;
  std::optional<MetricsPort> port_;
  FileDescriptor woken_;  // an eventfd
  std::mutex mutex_;
  PrometheusState state_;     // under mutex_
  bool file_is_due_ = false;  // likewise
  bool ends_ = false;         // likewise
  bool warned_ = false;
  std::thread thread_;
};

}  // namespace trireme
