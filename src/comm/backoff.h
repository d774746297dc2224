#pragma once

#include <sched.h>
#include <time.h>

#include <algorithm>

namespace trireme {

/// Between two polls of something that another rank must do first: yields, then sleeps of 2 us and
/// longer, so that ranks which share cores do not starve each other.
class Backoff {
 public:
  struct Patience {
    int yields = 64;
    long longest_sleep_ns = 50'000;
  };
  /// Of who is kept on a core, alone or with as many as on every other: it stays awake for some
  /// milliseconds, longer than ranks of a pipeline wait for each other where a few microseconds
  /// count.
  static constexpr Patience kAwake = {4096, 8'000};

  Backoff() = default;
  explicit Backoff(const Patience& patience) noexcept : patience_(patience) {}
  void reset() noexcept {
    polls_ = 0;
    sleep_ns_ = kFirstSleepNs;
  }
  void pause() noexcept {
    if (polls_ < patience_.yields) {
      ++polls_;
      ::sched_yield();
      return;
    }
    const timespec sleep{0, sleep_ns_};
    ::nanosleep(&sleep, nullptr);
    sleep_ns_ = std::min(2 * sleep_ns_, patience_.longest_sleep_ns);
  }

 private:
  static constexpr long kFirstSleepNs = 2'000;
  Patience patience_ = {};
  int polls_ = 0;
  long sleep_ns_ = kFirstSleepNs;
};

}  // namespace trireme
