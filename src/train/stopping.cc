#include "train/stopping.h"

#include "base/stop_flag.h"

namespace trireme {

Stopping::Stopping(const RunConfig& config, bool leader)
    : leader_(leader), stop_file_(std::filesystem::path(config.run.directory) / "stop") {
  if (!config.run.exit_after_minutes) return;
  const std::chrono::duration<double> limit(*config.run.exit_after_minutes * 60);
  deadline_ = std::chrono::steady_clock::now() +
              std::chrono::duration_cast<std::chrono::steady_clock::duration>(limit);
}

Stopping::Reason Stopping::look() const {
  if (stop_signal() != 0) return Reason::kSignal;
  if (!leader_) return Reason::kNone;
  if (deadline_ && std::chrono::steady_clock::now() >= *deadline_) return Reason::kTime;
  std::error_code ignored;
  return std::filesystem::exists(stop_file_, ignored) ? Reason::kStopFile : Reason::kNone;
}

void Stopping::remove_stop_file() const {
  std::error_code ignored;
  std::filesystem::remove(stop_file_, ignored);
}

}  // namespace trireme
