#pragma once
// A program that runs others one after the other and is asked to stop.

#include <csignal>
#include <string>
#include <vector>

namespace trireme {

/// For its life SIGINT, SIGTERM and SIGUSR1 are counted in place of what install_stop_handlers does
/// with them, and each is passed on to the program that runs then. One at a time.
class SignalRelay {
 public:
  SignalRelay();
  ~SignalRelay();
  SignalRelay(const SignalRelay&) = delete;
  SignalRelay& operator=(const SignalRelay&) = delete;

  /// Runs a program (looked for on PATH where it has no slash) to its end and returns its exit
  /// code, 128 + n where a signal n ended it. It has no input, and a process group of its own: a
  /// Ctrl-C of the terminal reaches it through this process alone, as SIGTERM. Where this process
  /// is killed the program gets SIGTERM too. Throws EnvironmentError where it cannot be started.
  int run(const std::vector<std::string>& words);

  /// Whether any of the signals has arrived, before or in the life of this object.
  [[nodiscard]] static bool stopped();

 private:
  struct sigaction before_[3] = {};
};

}  // namespace trireme
