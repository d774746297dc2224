#pragma once
// Ends a job that hangs. A thread in each rank publishes where the rank stands and looks for
// progress: a finished step, another phase, another collective. Where none comes for longer than
// `Patience` allows, the lowest rank alive on the host prints one report (who, host, phase, last
// collective of every rank) and ends all ranks with 124. Phases are those of the Trace: load
// (before the first step and under Phase::kCheckpoint), save and evaluation are allowed more. After
// the rank monitors of NVIDIA's resiliency extension and PyTorch's flight recorder.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "base/trace.h"
#include "comm/heartbeat.h"
#include "comm/launch.h"
#include "train/hang.h"

namespace trireme {

class Watchdog {
 public:
  /// All of them outlive this. `hang_timeout_seconds` as in the config; 0 = chosen.
  Watchdog(Launch& launch, Heartbeat& heartbeat, Trace& trace, double hang_timeout_seconds);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// After each step: `step` counts from 1 over the whole run.
  void step_finished(std::int64_t step, double seconds);
  /// For long work that changes neither phase nor collective: counts as progress. Any thread.
  void progress() noexcept { progress_.fetch_add(1, std::memory_order_relaxed); }

 private:
  void run();
  void publish(std::int64_t now_ns);
  void judge(std::int64_t now_ns);
  [[nodiscard]] bool someone_else_reports(std::int64_t now_ns) const;
  [[noreturn]] void end_job(double limit_seconds);

  Launch& launch_;
  Heartbeat& heartbeat_;
  Trace& trace_;
  std::atomic<std::int64_t> progress_{0};
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  bool stop_ = false;
  Patience patience_;
  std::int64_t step_ = 0, seen_progress_ = 0, expired_ns_ = 0;
  Beat beat_;
  std::thread thread_;
};

}  // namespace trireme
