#pragma once
// Who sees to it that a command's ranks end together: from its first line to its last the guard of
// the launch, and between, once the ranks have met, a watchdog.

#include "comm/heartbeat.h"
#include "train/launch_guard.h"
#include "train/watchdog.h"

namespace trireme {

/// A watchdog for as long as it lives; the guard, where there is one, rests meanwhile.
class Watch {
 public:
  /// Collective over the job. `hang_timeout_seconds` as in the config.
  Watch(Launch& launch, LaunchGuard* guard, double hang_timeout_seconds)
      : end_{guard}, heartbeat_(launch), watchdog_(launch, heartbeat_, hang_timeout_seconds) {
    if (guard != nullptr) guard->rest();
  }
  [[nodiscard]] Watchdog& watchdog() { return watchdog_; }

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
};

}  // namespace trireme
