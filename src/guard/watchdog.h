#pragma once
// Ends a job that hangs. A thread in each rank publishes where the rank stands and looks for
// progress: a finished step, another phase, another collective. Where none comes for longer than
// `Patience` allows, each host prints where its ranks stand, the lowest rank alive on the host of
// the cause prints one report (who, host, phase, last collective of every rank) and ends all ranks
// with 124. Phases are those of the Trace: load (before the first step and under
// Phase::kCheckpoint), save and evaluation are allowed more, except where a rank is stopped: no
// slow work explains that. A rank of this host that is dead (killed, crashed) ends the others
// within 5 s, also under launchers that leave them waiting. What a network library has found out
// about a connection (TransferFaults) ends them in its words: 71 after the first step. After the
// rank monitors of NVIDIA's resiliency extension and PyTorch's flight recorder.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/trace.h"
#include "comm/heartbeat.h"
#include "comm/launch.h"
#include "guard/end_claim.h"
#include "guard/hang.h"

namespace trireme {

class Watchdog {
 public:
  /// Collective over the job. All outlive this. `hang_timeout_seconds` as in the
  /// config; 0 = chosen. Until it follows a trace, the phase is Phase::kStart. `claim`: of the
  /// guard of the launch, which may have spoken on another rank; null where there is none.
  Watchdog(Launch& launch, Heartbeat& heartbeat, double hang_timeout_seconds,
           EndClaim* claim = nullptr);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// The phases and actions of `trace`, which outlives this. On the trace's thread.
  class Following {
   public:
    Following(Watchdog& watchdog, Trace& trace) : trace_(trace) {
      trace_.keep_standing_in(&watchdog.heartbeat_.standing());
    }
    ~Following() { trace_.keep_standing_in(nullptr); }
    Following(const Following&) = delete;
    Following& operator=(const Following&) = delete;

   private:
    Trace& trace_;
  };

  /// After each step: `step` counts from 1 over the whole run.
  void step_finished(std::int64_t step, double seconds);
  /// For long work that changes neither phase nor collective: counts as progress. Any thread.
  void progress() noexcept { progress_.fetch_add(1, std::memory_order_relaxed); }
  /// A thread that writes a checkpoint beside the steps: when it last made progress (steady clock),
  /// 0 while it has nothing to do. It is allowed to stand still as long as Phase::kCheckpoint is;
  /// its progress is the main thread's in that phase. Null: none.
  void watch_writer(const std::atomic<std::int64_t>* last_progress_ns);

 private:
  void run();
  void publish(std::int64_t now_ns);
  void publish_transfers(Beat& beat) const;
  void judge(std::int64_t now_ns);
  /// The ranks of this host that have begun and are not done.
  [[nodiscard]] std::vector<RankSight> look() const;
  void end_with_the_dead(const std::vector<RankSight>& sights, std::int64_t now_ns);
  void end_with_fault(std::int64_t now_ns);
  /// The last word is this rank's; else ends here, with the code of the one that has it.
  void report(ExitCode code);
  [[nodiscard]] bool speaks_for_host(std::int64_t now_ns) const;
  [[nodiscard]] bool someone_else_reports(std::int64_t now_ns) const;
  [[noreturn]] void end_job(double limit_seconds);
  void judge_writer(std::int64_t now_ns);

  Launch& launch_;
  Heartbeat& heartbeat_;
  EndClaim* claim_;
  std::string elsewhere_;  // the job's other hosts
  std::atomic<std::int64_t> progress_{0};
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  bool stop_ = false;
  Patience patience_;
  std::int64_t step_ = 0, seen_progress_ = 0;
  std::uint64_t seen_standing_ = 0;
  std::int64_t expired_ns_ = 0;               // when the patience ended
  std::int64_t looked_ns_ = 0;                // at the other processes
  std::int64_t dead_ns_ = 0;                  // since when a rank of this host is seen dead
  std::int64_t asked_ns_ = 0, fault_ns_ = 0;  // for faults of connections; since when there is one
  bool one_is_stopped_ = false, reported_ = false;
  const std::atomic<std::int64_t>* writer_ = nullptr;
  std::int64_t writer_stamp_ = 0, writer_progress_ns_ = 0;  // as last seen, and when it changed
  Beat beat_;
  std::thread thread_;
};

}  // namespace trireme
