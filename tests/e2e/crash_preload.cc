// Preloaded into a rank: at SIGUSR2 it ends as CRASH says, from a thread of its own: "exit" by
// exit(3), "throw" by an exception that nobody catches.

#include <semaphore.h>
#include <signal.h>

#include <cerrno>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <thread>

namespace {

sem_t told;
extern "C" void on_signal(int /*number*/) { ::sem_post(&told); }

struct Preloaded {
  Preloaded() {
    const char* how = std::getenv("CRASH");
    if (how == nullptr) return;
    ::sem_init(&told, 0, 0);
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGUSR2, &action, nullptr);
    std::thread([how] {
      while (::sem_wait(&told) != 0 && errno == EINTR) {
      }
      if (std::string_view(how) == "exit") std::exit(3);
      throw std::runtime_error("nobody catches this");
    }).detach();
  }
} const preloaded;

}  // namespace
