#pragma once

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"

namespace trireme {

/// A thread that runs `body` and takes no signals: those belong to the program's own threads.
/// Throws EnvironmentError where the system gives none.
template <class F>
std::thread signal_free_thread(F body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  std::error_code refused;
  try {
    thread = std::thread(std::move(body));
  } catch (const std::system_error& error) {
    refused = error.code();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (refused) {
    throw EnvironmentError(
        "no further thread can be started: {} (ulimit -u and a container's limit of pids bound "
        "their number, ulimit -v and -s their stacks). Raise what is low",
        refused.message());
  }
  return thread;
}

}  // namespace trireme
