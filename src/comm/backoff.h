#pragma once

#include <sched.h>
#include <time.h>

namespace trireme {

/// Between two polls of something that another rank must do first: yields, then sleeps of 2 to 50
/// us, so that ranks which share cores do not starve each other.
class Backoff {
 public:
  void reset() noexcept { polls_ = 0; }
  void pause() noexcept {
    if (++polls_ <= kYields) {
      ::sched_yield();
      return;
    }
    const int doublings = polls_ - kYields < 6 ? polls_ - kYields : 6;
    const long sleep_ns = doublings < 6 ? 1'000L << doublings : 50'000L;
    const timespec sleep{0, sleep_ns};
    ::nanosleep(&sleep, nullptr);
    if (polls_ > kYields + 6) polls_ = kYields + 6;
  }

 private:
  static constexpr int kYields = 64;
  int polls_ = 0;
};

}  // namespace trireme
