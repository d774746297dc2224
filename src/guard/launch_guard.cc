#include "guard/launch_guard.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/signal_free_thread.h"
#include "base/stop_flag.h"
#include "comm/launch_variables.h"
#include "guard/hang.h"
#include "guard/process_stat.h"

namespace trireme {

namespace {
constexpr double kLookSeconds = 0.5;
constexpr double kQuietSeconds = 3;        // an ordinary start is over by then
constexpr double kGraceSeconds = 5;        // for the rank that should report first
constexpr double kGraceOfDeadSeconds = 1;  // where a rank is dead

std::filesystem::path process_folder(int pid) { return fmt::format("/proc/{}", pid); }

std::string program_of(int pid) {
  std::error_code ignored;
  return std::filesystem::read_symlink(process_folder(pid) / "exe", ignored).string();
}

int parent_of(int pid) {
  std::istringstream fields(process_stat(pid));
  std::string state;
  int parent = -1;
  fields >> state >> parent;
  return parent;
}

int number_in(std::string_view text) {
  int number = -1;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

int rank_of(int pid) {
  std::ifstream file(process_folder(pid) / "environ", std::ios::binary);
  int rank = -1;
  for (std::string variable; std::getline(file, variable, '\0');) {
    for (const std::string_view name : {"PMIX_RANK=", "OMPI_COMM_WORLD_RANK=", "PMI_RANK="}) {
      if (variable.starts_with(name))
        rank = number_in(std::string_view(variable).substr(name.size()));
    }
    if (rank < 0 && variable.starts_with("SLURM_PROCID="))
      rank = number_in(std::string_view(variable).substr(13));
  }
  return rank;
}
}  // namespace

std::vector<Sibling> siblings() {
  std::vector<Sibling> found;
  const int me = ::getpid(), parent = ::getppid();
  const std::string program = program_of(me);
  std::error_code fault;
  for (std::filesystem::directory_iterator at("/proc", fault), end; !fault && at != end;
       at.increment(fault)) {
    const int pid = number_in(at->path().filename().string());
    if (pid <= 0 || (pid != me && (parent_of(pid) != parent || program_of(pid) != program)))
      continue;
    found.push_back({pid, rank_of(pid), process_state_of(pid)});
  }
  std::sort(found.begin(), found.end(), [](const Sibling& a, const Sibling& b) {
    return std::pair(a.rank, a.pid) < std::pair(b.rank, b.pid);
  });
  return found;
}

std::string name_stopped(std::span<const Sibling> all) {
  std::string list;
  for (const Sibling& one : all) {
    if (!out_of_action(one.state)) continue;
    if (!list.empty()) list += ", ";
    list += fmt::format("rank {} (pid {}, {})", one.rank, one.pid, state_text(one.state));
  }
  return list;
}

int speaker_of(std::span<const Sibling> all) {
  const auto found = std::find_if(all.begin(), all.end(),
                                  [](const Sibling& one) { return !out_of_action(one.state); });
  return found == all.end() ? ::getpid() : found->pid;
}

LaunchGuard::LaunchGuard(std::function<double()> hang_timeout_seconds)
    : hang_timeout_seconds_(std::move(hang_timeout_seconds)) {
  if (read_launch_variables([](const char* name) { return std::getenv(name); }).ranks == 1) return;
  thread_ = signal_free_thread([this] { run(); });
}

LaunchGuard::~LaunchGuard() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void LaunchGuard::rest() {
  const std::lock_guard lock(mutex_);
  watching_ = false;
}

void LaunchGuard::watch_end() {
  const std::lock_guard lock(mutex_);
  watching_ = true;
  starting_ = false;
  waited_seconds_ = stopped_seconds_ = 0;
}

void LaunchGuard::run() {
  using Clock = std::chrono::steady_clock;
  std::unique_lock lock(mutex_);
  Clock::time_point before = Clock::now();
  const auto look = std::chrono::duration<double>(kLookSeconds);
  do {
    const Clock::time_point now = Clock::now();
    // Time in which this process was stopped itself does not count.
    waited_seconds_ +=
        std::min(2 * kLookSeconds, std::chrono::duration<double>(now - before).count());
    before = now;
    if (watching_) {
      judge();
    } else if (!std::exchange(all_met_, true)) {
      meet();
    }
  } while (!wake_.wait_for(lock, look, [this] { return stop_; }));
}

std::vector<Sibling> LaunchGuard::meet() {
  std::vector<Sibling> all = siblings();
  for (const Sibling& one : all) claim_.meet(one.rank, one.pid);
  return all;
}

void LaunchGuard::judge() {
  const std::vector<Sibling> all = meet();
  if (starting_) end_with_the_dead(all);
  if (waited_seconds_ <= kQuietSeconds) return;
  if (given_seconds_ < 0) {
    try {
      given_seconds_ = hang_timeout_seconds_();
    } catch (const std::exception&) {
      given_seconds_ = 0;  // the main thread reports it
    }
  }
  stopped_seconds_ = name_stopped(all).empty() ? 0 : stopped_seconds_ + kLookSeconds;
  const Patience patience(given_seconds_);
  const double stopped_limit = patience.limit_seconds_of_stopped();
  const double limit = patience.limit_seconds(Phase::kStart);
  const double late = std::max(stopped_seconds_ - stopped_limit, waited_seconds_ - limit);
  if (late <= 0 || speaker_ == 0) {
    // Decided before the deadline: the one that speaks is gone when it has spoken.
    speaker_ = speaker_of(all);
    return;
  }
  if (speaker_ != ::getpid() && late < kGraceSeconds) return;
  end_job(all, stopped_seconds_ > stopped_limit ? stopped_limit : limit);
}

void LaunchGuard::end_with_the_dead(std::span<const Sibling> all) {
  for (const Sibling& one : all) {
    const bool known = std::any_of(met_.begin(), met_.end(),
                                   [&](const Sibling& met) { return met.pid == one.pid; });
    if (one.rank >= 0 && !known) met_.push_back(one);
  }
  const auto dead = std::find_if(met_.begin(), met_.end(), [](const Sibling& one) {
    return is_dead(process_state_of(one.pid));
  });
  if (dead == met_.end()) {
    dead_seconds_ = 0;
    return;
  }
  if (dead_seconds_ == 0) speaker_ = speaker_of(all);
  dead_seconds_ += kLookSeconds;
  const double late = dead_seconds_ - Patience::limit_seconds_of_dead(stop_signal() == SIGTERM);
  if (late <= 0) return;
  // The dead one may have had the last word itself.
  if (const int code = claim_.taken(); code != 0) ::_exit(code);
  if (speaker_ != ::getpid() && late <= kGraceOfDeadSeconds) return;
  const ExitCode code = ExitCode::kInternal;
  const std::string text = fmt::format(
      "error: rank {} (pid {}) has died while the ranks started (killed, or a crash that the "
      "launcher may name); those of this host end with it.\ntrain: exit {} (rank {} is gone)\n",
      dead->rank, dead->pid, static_cast<int>(code), dead->rank);
  end_with(code, text);
}

void LaunchGuard::end_with(ExitCode code, std::string_view text) {
  if (!claim_.take(static_cast<int>(code))) ::_exit(claim_.taken());
  // One write, without the logger.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  ::_exit(static_cast<int>(code));
}

void LaunchGuard::end_job(std::span<const Sibling> all, double limit_seconds) {
  std::string who = name_stopped(all);
  if (who.empty())
    who = "no rank that can be seen from here is stopped; look at the other hosts and the network";
  const std::string_view what = starting_ ? "start" : "end";
  const std::string text = fmt::format(
      "error: the ranks of this host do not {} together, for longer than the {:.0f} s allowed "
      "here (the job would hang for ever): {}. If this takes so long, raise "
      "run.hang_timeout_seconds.\ntrain: exit {} (no progress, phase {}: {})\n",
      what, limit_seconds, who, static_cast<int>(ExitCode::kHang), what, who);
  end_with(ExitCode::kHang, text);
}

}  // namespace trireme
