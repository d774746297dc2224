#pragma once
// Errors carry the exit code that the process ends with and one sentence in the form
// "problem (why it matters). suggestion". Nothing below main.cc ends the process.

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace trireme {

/// The documented exit codes of the program (README.md, "Exit codes").
enum class ExitCode : int {
  kOk = 0,
  kConfig = 2,       ///< what the config, the command line or a model config says
  kEnvironment = 3,  ///< what this machine or build lacks
  kDiverged = 4,     ///< ten non-finite steps in a row
  kInternal = 70,    ///< a defect of this program
  kDevice = 71,      ///< a device or the network failed after the first step
  kData = 74,        ///< what a file contains or the file system refuses
  kRequeue = 75,     ///< saved after a signal; start it again
  kHang = 124,       ///< the watchdog ended a job without progress
};

class Error : public std::runtime_error {
 public:
  /// Messages quote foreign files: `what()` is readable (base/readable.h), one line of file faults.
  Error(ExitCode code, std::string_view message);
  [[nodiscard]] ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

/// One class for each code, so that a call site says which kind of fault it found:
/// `throw DataError("{}: the header ends after {} bytes", path, n);`
template <ExitCode kCode>
class CodedError : public Error {
 public:
  template <class... Args>
  explicit CodedError(fmt::format_string<Args...> format, Args&&... args)
      : Error(kCode, fmt::format(format, std::forward<Args>(args)...)) {}
};
using ConfigError = CodedError<ExitCode::kConfig>;
using EnvironmentError = CodedError<ExitCode::kEnvironment>;
using DivergedError = CodedError<ExitCode::kDiverged>;
using InternalError = CodedError<ExitCode::kInternal>;
using DataError = CodedError<ExitCode::kData>;

/// For what only a defect of this program can break. Always on.
template <class... Args>
void expect(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw InternalError(format, std::forward<Args>(args)...);
}

/// "No space left on device" for an errno value; thread-safe.
std::string errno_text(int error_number);

/// A device or the network that did not do what it was asked. Before the first step the machine may
/// lack something, and a restart finds the same; later it is kDevice (Trainer::run).
class DeviceError : public EnvironmentError {
 public:
  using EnvironmentError::EnvironmentError;
};

/// Memory that the system or a GPU refuses, by its size; whoever knows what it was for says more.
class OutOfMemory : public EnvironmentError {
 public:
  using EnvironmentError::EnvironmentError;
};

}  // namespace trireme
