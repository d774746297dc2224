#include "train/run_end.h"

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

}  // namespace trireme
