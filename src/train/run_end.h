#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/error.h"
#include "config/run_config.h"
#include "telemetry/metrics_lines.h"

namespace trireme {

/// How a command of training ends where nothing failed.
struct RunEnd {
  ExitCode code = ExitCode::kOk;
  std::string reason;  ///< for the last line, "train: exit CODE (REASON)"
};

/// `signal` is the one that stopped the run, if any. Not of kDiverged and kError, which are thrown.
RunEnd run_end(EndReason reason, std::int64_t signal);

/// Whether this rank sees a reason to stop, asked once a step. The reasons of all ranks are merged
/// (the largest wins), so that all stop behind the same step.
class Stopping {
 public:
  /// In ascending order of precedence; from kSignal on, kSignal + the signal's number.
  enum Reason : std::int64_t { kNone, kStopFile, kTime, kSignal };

  /// Only `leader` (rank 0) looks at the clock and for the file run.directory/stop.
  Stopping(const RunConfig& config, bool leader);
  [[nodiscard]] std::int64_t look() const;
  /// Removes the stop file; on the leader.
  void remove_stop_file() const;

 private:
  bool leader_;
  std::filesystem::path stop_file_;
  std::optional<std::chrono::steady_clock::time_point> deadline_;
};

}  // namespace trireme
