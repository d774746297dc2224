#include "train/run_end.h"

#include "base/file.h"
#include "base/stop_flag.h"

namespace trireme {

RunEnd run_end(EndReason reason, std::int64_t signal) {
  switch (reason) {
    case EndReason::kSteps:
      return {ExitCode::kOk, "finished"};
    case EndReason::kExitAtStep:
      return {ExitCode::kOk, "run.exit_at_step, saved"};
    case EndReason::kEarlyStop:
      return {ExitCode::kOk, "early_stop: evaluation.stop_after, saved"};
    case EndReason::kStopFile:
      return {ExitCode::kOk, "stop file, saved"};
    case EndReason::kTime:
      return {ExitCode::kRequeue, "run.exit_after_minutes: time limit, saved, please requeue"};
    case EndReason::kSignal:
      return {ExitCode::kRequeue,
              fmt::format("{}, saved, please requeue", stop_signal_name(static_cast<int>(signal)))};
    case EndReason::kDiverged:
    case EndReason::kError:
      break;
  }
  throw InternalError("a run that failed ends by its error");
}

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
