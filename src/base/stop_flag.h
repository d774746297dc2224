#pragma once
// Signals that ask the program to stop. The handlers only set flags; the training loop reads them.

namespace trireme {

/// Installs handlers for SIGTERM, SIGINT and SIGUSR1. The first of them sets the flag; a second one
/// ends the process at once with 128 + its number.
void install_stop_handlers();

/// Number of the first signal received, 0 where there was none.
int stop_signal() noexcept;

}  // namespace trireme
