#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "telemetry/metrics_lines.h"

namespace trireme {

/// How a command of training ends where nothing failed.
struct RunEnd {
  ExitCode code = ExitCode::kOk;
  std::string reason;  ///< for the last line, "train: exit CODE (REASON)"
};

/// `signal` is the one that stopped the run, if any. Not of kDiverged and kError, which are thrown.
RunEnd run_end(EndReason reason, std::int64_t signal);

}  // namespace trireme
