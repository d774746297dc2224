#pragma once
// Signals that ask the program to stop. The handlers only set flags; the training loop reads them.

#include <atomic>
#include <cstdint>
#include <string_view>

namespace trireme {

/// Installs handlers for SIGTERM, SIGINT and SIGUSR1. The second ends the process, 128 + n.
void install_stop_handlers();

/// The job has announced that it ends with `code`, or a rank of it is about to. A second signal now
/// ends the process with that code, without a word: launchers send one to ranks that are still
/// leaving, and srun then reports the largest code of all ranks.
void announce_exit_code(int code) noexcept;

/// While it lives, the first signal is answered at once on standard error, from the handler: a line
/// of "SIGINT: " and the text. One at a time. `answered`, where it is given: memory that processes
/// share; who counts it up from 0 speaks. Unused behind this object's life.
class StopAnswer {
 public:
  explicit StopAnswer(const char* text, std::atomic<std::uint64_t>* answered = nullptr) noexcept;
  ~StopAnswer();
  StopAnswer(const StopAnswer&) = delete;
  StopAnswer& operator=(const StopAnswer&) = delete;
};

/// "SIGTERM"; "a signal" for any but those three. The text lives for ever.
const char* stop_signal_name(int number) noexcept;

/// Number of the first signal received, 0 where there was none.
int stop_signal() noexcept;

/// For commands with nothing to save: once stopped, throws Error (75): `what` was given up.
void give_up_if_stopped(std::string_view what);

}  // namespace trireme
