#include "commands/signal_relay.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/stop_flag.h"

namespace trireme {

namespace {

constexpr int kStopSignals[] = {SIGTERM, SIGINT, SIGUSR1};
std::atomic<int> arrived{0};
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

extern "C" void count_signal(int) { ++arrived; }

/// In the child, between fork and exec: only calls that are safe there. Does not return.
[[noreturn]] void become(char* const* words, pid_t parent, int fault_pipe) {
  sigset_t stops;
  sigemptyset(&stops);
  for (const int number : kStopSignals) sigaddset(&stops, number);
  ::setpgid(0, 0);
  ::sigprocmask(SIG_UNBLOCK, &stops, nullptr);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(128 + SIGTERM);  // it ended before this was asked for
  const int empty = ::open("/dev/null", O_RDONLY);
  if (empty >= 0) ::dup2(empty, STDIN_FILENO);
  ::execvp(words[0], words);
  const int fault = errno;
  [[maybe_unused]] const auto written = ::write(fault_pipe, &fault, sizeof fault);
  ::_exit(127);
}

}  // namespace

SignalRelay::SignalRelay() {
  arrived = stop_signal() != 0 ? 1 : 0;
  struct sigaction action {};
  action.sa_handler = count_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < std::size(kStopSignals); ++i)
    ::sigaction(kStopSignals[i], &action, &before_[i]);
}

SignalRelay::~SignalRelay() {
  for (std::size_t i = 0; i < std::size(kStopSignals); ++i)
    ::sigaction(kStopSignals[i], &before_[i], nullptr);
}

bool SignalRelay::stopped() { return arrived != 0; }

int SignalRelay::run(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw EnvironmentError("a pipe: {}", errno_text(errno));
  FileDescriptor reading(ends[0]), writing(ends[1]);
  int forwarded = arrived;
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) become(arguments.data(), parent, writing.get());
  if (child < 0)
    throw EnvironmentError("{}: cannot be started: {}", words.front(), errno_text(errno));
  writing.reset();
  int fault = 0;
  const bool failed = ::read(reading.get(), &fault, sizeof fault) == sizeof fault;
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) != child) {
    if (forwarded < arrived) {
      ++forwarded;
      ::kill(child, SIGTERM);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  if (failed) throw EnvironmentError("{}: cannot be started: {}", words.front(), errno_text(fault));
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace trireme
