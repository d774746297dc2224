#pragma once

#include <sched.h>
#include <time.h>

namespace trireme {

/// Between two polls of something that another rank must do first: yields, then sleeps of 2 to 50
/// us, so that ranks which share cores do not starve each other.
class Backoff {
 public:
  static constexpr int kYields = 64;
  /// Of who has a core of its own: a millisecond or more.
  static constexpr int kYieldsAlone = 4096;
  explicit Backoff(int yields = kYields) noexcept : yields_(yields) {}
  void reset() noexcept { polls_ = 0; }
  void pause() noexcept {
    if (++polls_ <= yields_) {
      ::sched_yield();
      return;
    }
    const int doublings = polls_ - yields_ < 6 ? polls_ - yields_ : 6;
    const long sleep_ns = doublings < 6 ? 1'000L << doublings : 50'000L;
    const timespec sleep{0, sleep_ns};
    ::nanosleep(&sleep, nullptr);
    if (polls_ > yields_ + 6) polls_ = yields_ + 6;
  }

 private:
  int yields_;
  int polls_ = 0;
};

}  // namespace trireme
