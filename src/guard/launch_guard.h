#pragma once
// Ends a job that hangs where no watchdog lives: while its ranks start (MPI_Init, reading the
// config, meeting each other) and while they leave. A rank sees no others then but the processes
// of its host. One that dies while they start ends those of its host within 5 s; that it has gone
// while they leave is no fault. One rank of the host reports what is found (EndClaim).

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"
#include "guard/end_claim.h"

namespace trireme {

/// A rank of this host, found among the processes that the same launcher started.
struct Sibling {
  int pid = 0;
  int rank = -1;     ///< as its launcher's variables say; -1: they do not
  char state = '?';  ///< as of process_state_of
};
/// The processes with this one's parent and program, this one among them, by rank.
std::vector<Sibling> siblings();

/// "rank 1 (pid 7, stopped (SIGSTOP or a debugger))", ...: those out of action; "" where all live.
std::string name_stopped(std::span<const Sibling> siblings);

/// The pid of the one that says what has happened: the first in action.
int speaker_of(std::span<const Sibling> siblings);

class LaunchGuard {
 public:
  /// Watches from here on, with a thread where the launcher's variables name several ranks.
  /// `hang_timeout_seconds` gives the config's value (0: chosen), and is asked only where a start
  /// takes long, from another thread; what it throws counts as 0. As the watchdog: a stopped rank
  /// of this host ends the job after the time of a step, anything else after the time of a load.
  explicit LaunchGuard(std::function<double()> hang_timeout_seconds);
  ~LaunchGuard();
  LaunchGuard(const LaunchGuard&) = delete;
  LaunchGuard& operator=(const LaunchGuard&) = delete;

  /// A watchdog has taken over.
  void rest();
  /// It has gone, and the ranks leave.
  void watch_end();
  /// Of the ranks of this host, all of which it has met when a watchdog takes over.
  [[nodiscard]] EndClaim& claim() { return claim_; }

 private:
  void run();
  void judge();
  std::vector<Sibling> meet();
  void end_with_the_dead(std::span<const Sibling> all);
  [[noreturn]] void end_job(std::span<const Sibling> all, double limit_seconds);
  /// Prints `text` and ends with `code`, or with that of the rank that has reported already.
  [[noreturn]] void end_with(ExitCode code, std::string_view text);

  EndClaim claim_;
  std::function<double()> hang_timeout_seconds_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  bool stop_ = false, watching_ = true, all_met_ = false;
  bool starting_ = true;
  int speaker_ = 0;  // pid of the rank that reports; 0: none yet
  double waited_seconds_ = 0, stopped_seconds_ = 0, dead_seconds_ = 0, given_seconds_ = -1;
  std::vector<Sibling> met_;  // all that were ever seen
  std::thread thread_;
};

}  // namespace trireme
