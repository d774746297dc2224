#pragma once
// What a person looks at in a run's folder: loss.svg and report.html.

#include <filesystem>
#include <string>

#include "telemetry/run_history.h"

namespace trireme {

class RunPages {
 public:
  static constexpr const char* kReportName = "report.html";
  enum class Report : std::uint8_t { kNo, kYes };
  /// Of the run in this folder, by its metrics.jsonl.
  RunPages(std::filesystem::path directory, Report report);
  /// Reads on in the metrics (flush them first) and replaces the files atomically. A failure is
  /// warned of once and gives false: a page never ends a run.
  bool redraw() noexcept;

 private:
  std::filesystem::path directory_;
  Report report_;
  RunHistory history_;
  bool warned_ = false;
};

}  // namespace trireme
