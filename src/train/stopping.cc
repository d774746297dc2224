#include "train/stopping.h"

#include "base/file.h"
#include "base/stop_flag.h"

namespace trireme {

Stopping::Stopping(const RunConfig& config, bool leader)
    : leader_(leader), stop_file_(std::filesystem::path(config.run.directory) / "stop") {
  if (!config.run.exit_after_minutes) return;
  const std::chrono::duration<double> limit(*config.run.exit_after_minutes * 60);
  deadline_ = std::chrono::steady_clock::now() +
              std::chrono::duration_cast<std::chrono::steady_clock::duration>(limit);
}

std::int64_t Stopping::look() const {
  if (const int signal = stop_signal()) return kSignal + signal;
  if (!leader_) return kNone;
  if (deadline_ && std::chrono::steady_clock::now() >= *deadline_) return kTime;
  return is_there(stop_file_) ? kStopFile : kNone;
}

void Stopping::remove_stop_file() const {
  std::error_code ignored;
  std::filesystem::remove(stop_file_, ignored);
}

}  // namespace trireme
