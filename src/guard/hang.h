#pragma once
// When a job counts as hung, and by whom: the watchdog's arithmetic, without threads or clocks.

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/trace.h"
#include "comm/heartbeat.h"

namespace trireme {

/// How long a rank may stand still.
class Patience {
 public:
  static constexpr double kStepSecondsMin = 60;  ///< of a step, where the config gives 0
  static constexpr double kSlowSeconds =
      600;  ///< of the first steps, load, save and evaluation, where it gives 0
  static constexpr std::int64_t kFirstSteps = 5;  ///< of this process
  static constexpr double kSlowFactor =
      10;  ///< load, save and evaluation get so many times the config's value,
  static constexpr double kSlowSecondsMin = 60;  ///< but no less than this

  /// `hang_timeout_seconds`: 0 = max(60, 5 x the slowest of 20 steps); others from the first step
  /// on.
  explicit Patience(double hang_timeout_seconds) : given_seconds_(hang_timeout_seconds) {}
  void step_finished(double seconds);
  [[nodiscard]] double limit_seconds(Phase phase) const;
  /// Where another rank is known to be stopped: no slow work explains that.
  [[nodiscard]] double limit_seconds_of_stopped() const;
  /// Where a rank of this host is dead: how long the launcher is left to end the others, as it
  /// knows the reason better. One that acts (it has sent SIGTERM) is left more.
  static double limit_seconds_of_dead(bool launcher_acts);

 private:
  [[nodiscard]] double of_step() const;
  double given_seconds_;
  std::int64_t steps_ = 0;
  std::deque<double> recent_;
};

/// A rank of this host as the watchdog of another sees it.
struct RankSight {
  Beat beat;
  char process_state = '?';  ///< of /proc/PID/stat; 'T' stopped, 'Z' dead; '-' no such process;
                             ///< '?' where it cannot be seen from here
};
/// 'R', 'S', 'D', 'T', ...; '-' where there is no such process; '?' where that cannot be found out.
char process_state_of(std::int32_t pid);
/// "stopped (SIGSTOP or a debugger)"
std::string_view state_text(char process_state);
/// Dead or gone: never true of one that is merely slow.
bool is_dead(char process_state);
/// Stopped, dead or gone.
bool out_of_action(char process_state);

/// A host and the ranks on it, ascending.
struct HostRanks {
  std::string name;
  std::vector<int> ranks;
};
/// "oars-b (rank 2), oars-c (ranks 3 to 5)", ...; the first eight of many.
std::string list_hosts(std::span<const HostRanks> hosts);

struct HangReport {
  bool culprit_found = false;
  std::string text;    ///< several lines, each ended
  std::string reason;  ///< for "train: exit 124 (...)"
};

/// Two ranks that entered different collectives as the same one of their group, or two groups'
/// collectives in different orders: "rank 0 entered ..., rank 1 ...". Time would not help. Else "".
std::string describe_desync(std::span<const RankSight> ranks);

/// A line for each rank: process, step, phase, last collective.
std::string describe_ranks(std::span<const RankSight> ranks, std::string_view host,
                           std::int64_t now_ns);

/// Names the ranks that are stopped or gone; else two that are desynchronised; else those outside
/// of the collective that others wait in; else those at the lowest step and collective. `now_ns` on
/// the clock of the beats. `elsewhere`: the job's other hosts (list_hosts), "" where there are
/// none; where no rank of this host is behind the others of it, the cause is there.
HangReport describe_hang(std::span<const RankSight> ranks, std::string_view host,
                         std::int64_t now_ns, double limit_seconds, std::string_view elsewhere);

}  // namespace trireme
