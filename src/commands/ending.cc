#include "commands/ending.h"

#include "base/error.h"
#include "base/log.h"

namespace trireme {

namespace {

std::string_view reason_of(int code) {
  switch (static_cast<ExitCode>(code)) {
    case ExitCode::kOk:
      return "done";
    case ExitCode::kConfig:
      return "config or command line";
    case ExitCode::kEnvironment:
      return "this machine or build";
    case ExitCode::kDiverged:
      return "diverged";
    case ExitCode::kInternal:
      return "internal error";
    case ExitCode::kDevice:
      return "a device or the network failed, please start it again";
    case ExitCode::kData:
      return "data or file system";
    case ExitCode::kRequeue:
      return "stopped, please start it again";
    case ExitCode::kHang:
      return "hang";
  }
  return "unknown";
}

}  // namespace

std::string closing_line(const Ending& ending) {
  return fmt::format("train: exit {} ({})", ending.code,
                     ending.reason.empty() ? reason_of(ending.code) : ending.reason);
}

void print_fault(int code, const char* what) {
  log_info("error: {}", what);
  log_info_text(closing_line(code));
}

}  // namespace trireme
