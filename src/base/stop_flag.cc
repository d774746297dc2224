#include "base/stop_flag.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>

#include "base/error.h"

namespace trireme {

namespace {
std::atomic<int> first_signal{0};
constexpr int kNotAnnounced = -1;
std::atomic<int> announced_code{kNotAnnounced};
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

struct Answer {
  const char* text;
  std::atomic<std::uint64_t>* answered;
};
std::atomic<const Answer*> answer{nullptr};
std::atomic<int> answering{0};
static_assert(std::atomic<const Answer*>::is_always_lock_free &&
                  std::atomic<std::uint64_t>::is_always_lock_free,
              "used in a signal handler");

/// Only calls that are safe in a handler.
void answer_signal(int number) noexcept {
  answering.fetch_add(1);
  if (const Answer* const now = answer.load()) {
    std::uint64_t nobody = 0;
    if (now->answered == nullptr || now->answered->compare_exchange_strong(nobody, 1)) {
      // One write, so that lines of other ranks do not come between.
      char line[256];
      std::size_t length = 0;
      for (const char* part : {stop_signal_name(number), ": ", now->text, "\n"}) {
        const std::size_t size = std::min(std::strlen(part), sizeof line - length);
        std::memcpy(line + length, part, size);
        length += size;
      }
      [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line, length);
    }
  }
  answering.fetch_sub(1);
}

extern "C" void on_stop_signal(int number) {
  int none = 0;
  if (first_signal.compare_exchange_strong(none, number)) return answer_signal(number);
  // Only calls that are safe in a handler from here on; the number has at most two digits.
  if (const int code = announced_code; code != kNotAnnounced) ::_exit(code);
  const int code = 128 + number;
  char text[] = "train: exit 1xx (a second signal)\n";
  text[13] = static_cast<char>('0' + code / 10 % 10);
  text[14] = static_cast<char>('0' + code % 10);
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text, std::strlen(text));
  ::_exit(code);
}
}  // namespace

void install_stop_handlers() {
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigset_t stops;
  sigemptyset(&stops);
  for (const int number : {SIGTERM, SIGINT, SIGUSR1}) {
    ::sigaction(number, &action, nullptr);
    sigaddset(&stops, number);
  }
  // A thread of their own takes them, so that no handler runs on the stack of generated code: some
  // of it keeps data where a handler's frame goes. Threads made from here on inherit the mask.
  ::pthread_sigmask(SIG_BLOCK, &stops, nullptr);
  std::thread([stops] {
    ::pthread_sigmask(SIG_UNBLOCK, &stops, nullptr);
    for (;;) ::pause();
  }).detach();
}

StopAnswer::StopAnswer(const char* text, std::atomic<std::uint64_t>* answered) noexcept {
  static Answer one;
  one = {text, answered};
  answer = &one;
}

StopAnswer::~StopAnswer() {
  answer = nullptr;
  while (answering.load() != 0) std::this_thread::yield();  // the handler has a thread of its own
}

const char* stop_signal_name(int number) noexcept {
  switch (number) {
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGUSR1:
      return "SIGUSR1";
    default:
      return "a signal";
  }
}

void announce_exit_code(int code) noexcept { announced_code = code; }

int stop_signal() noexcept { return first_signal.load(); }

void give_up_if_stopped(std::string_view what) {
  const int number = stop_signal();
  if (number == 0) return;
  throw CodedError<ExitCode::kRequeue>(
      "{} was stopped by signal {} (nothing was written). Start it again", what, number);
}

}  // namespace trireme
