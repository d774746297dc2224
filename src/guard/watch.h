#pragma once
// Who sees to it that a command's ranks end together: from its first line to its last the guard of
// the launch, and between, once the ranks have met, a watchdog.

#include <optional>

#include "base/stop_flag.h"
#include "comm/heartbeat.h"
#include "guard/launch_guard.h"
#include "guard/watchdog.h"

namespace trireme {

/// A watchdog for as long as it lives; the guard, where there is one, rests meanwhile. A signal to
/// stop is answered at once and by one rank: the first of rank 0's host that gets it.
class Watch {
 public:
  /// Collective over the job. `hang_timeout_seconds` as in the config.
  Watch(Launch& launch, LaunchGuard* guard, double hang_timeout_seconds)
      : end_{guard},
        heartbeat_(launch),
        watchdog_(launch, heartbeat_, hang_timeout_seconds,
                  guard != nullptr ? &guard->claim() : nullptr) {
    if (guard != nullptr) guard->rest();
    std::int64_t first = launch.job().rank();
    launch.host().broadcast(std::as_writable_bytes(std::span(&first, 1)), 0);
    const bool told_once = heartbeat_.host_word() != nullptr || launch.job().rank() == 0;
    answers_ = first == 0 && told_once;
    answer_stop("stopping; again to end at once");
  }
  /// A launcher that ends the job behind this sends signals which nobody answers.
  ~Watch() {
    if (auto* const told = heartbeat_.host_word()) *told = 1;
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  [[nodiscard]] Watchdog& watchdog() { return watchdog_; }
  /// What a signal to stop is answered with from here on; the text lives for ever.
  void answer_stop(const char* text) {
    if (answers_) answer_.emplace(text, heartbeat_.host_word());
  }

 private:
  struct GuardOfEnd {
    LaunchGuard* guard;
    ~GuardOfEnd() {
      if (guard != nullptr) guard->watch_end();
    }
  };
  GuardOfEnd end_;  // the guard watches again when the watchdog has gone
  Heartbeat heartbeat_;
  Watchdog watchdog_;
  bool answers_ = false;
  std::optional<StopAnswer> answer_;
};

}  // namespace trireme
