#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace trireme {

/// A thread that runs `body` and takes no signals: those belong to the program's own threads.
template <class F>
std::thread signal_free_thread(F body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace trireme
