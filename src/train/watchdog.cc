#include "train/watchdog.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <string_view>
#include <tuple>
#include <vector>

namespace trireme {

namespace {
constexpr auto kInterval = std::chrono::milliseconds(50);  // also the age of a stopped rank's entry
constexpr std::int64_t kSecondNs = 1'000'000'000;
constexpr std::int64_t kPauseNs =
    5 * kSecondNs;  // between two looks: this process itself was stopped
constexpr std::int64_t kFreshNs = 5 * kSecondNs;  // the age of an entry whose watchdog lives
constexpr std::int64_t kGraceNs = 5 * kSecondNs;  // for the rank or host that should report first

// One write, so that lines of two ranks do not mix; without the logger, whose lock a hung thread
// may hold.
void write_error(std::string_view text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}
}  // namespace

Watchdog::Watchdog(Launch& launch, Heartbeat& heartbeat, Trace& trace, double hang_timeout_seconds)
    : launch_(launch), heartbeat_(heartbeat), trace_(trace), patience_(hang_timeout_seconds) {
  beat_.pid = ::getpid();
  beat_.rank = launch_.world().rank();
  beat_.stamp_ns = beat_.progress_ns = steady_now_ns();
  publish(beat_.stamp_ns);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Watchdog::step_finished(std::int64_t step, double seconds) {
  progress();
  const std::lock_guard lock(mutex_);
  patience_.step_finished(seconds);
  step_ = step;
  publish(steady_now_ns());
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const std::int64_t now_ns = steady_now_ns();
    publish(now_ns);
    judge(now_ns);
    wake_.wait_for(lock, kInterval);
  }
}

void Watchdog::publish(std::int64_t now_ns) {
  const TransferRecord transfer = launch_.flight_recorder().current();
  Beat next = beat_;
  next.step = step_ == 0 ? 0 : step_ + 1;
  next.phase = static_cast<std::int32_t>(trace_.current_phase());
  next.sequence = launch_.flight_recorder().last_sequence();
  next.transfer_sequence = transfer.sequence;
  next.transfer_bytes = transfer.bytes;
  next.transfer_running = transfer.sequence != 0 && transfer.end_ns == 0 ? 1 : 0;
  next.operation.fill('\0');
  std::string_view(transfer.operation).copy(next.operation.data(), next.operation.size() - 1);
  next.channel = transfer.channel;
  const auto place = [](const Beat& beat) {
    return std::tuple(beat.step, beat.phase, beat.sequence, beat.transfer_sequence,
                      beat.transfer_running);
  };
  const std::int64_t progress = progress_.load(std::memory_order_relaxed);
  // Ctrl-Z and `fg`, or a suspended machine: time in which nobody could have made progress.
  if (now_ns - beat_.stamp_ns > kPauseNs) next.progress_ns += now_ns - beat_.stamp_ns;
  if (place(next) != place(beat_) || progress != seen_progress_) next.progress_ns = now_ns;
  next.stamp_ns = now_ns;
  seen_progress_ = progress;
  beat_ = next;
  heartbeat_.publish(beat_);
}

void Watchdog::judge(std::int64_t now_ns) {
  const double limit_seconds = patience_.limit_seconds(static_cast<Phase>(beat_.phase));
  if (static_cast<double>(now_ns - beat_.progress_ns) * 1e-9 <= limit_seconds) {
    expired_ns_ = 0;
    return;
  }
  if (expired_ns_ == 0) expired_ns_ = now_ns;
  if (!someone_else_reports(now_ns)) end_job(limit_seconds);
}

bool Watchdog::someone_else_reports(std::int64_t now_ns) const {
  const std::int64_t waited_ns = now_ns - expired_ns_;
  for (const Beat& beat : heartbeat_.read()) {
    // It has spoken; a loaded machine may take long to end the ranks.
    if (beat.reporting != 0 && beat.rank != beat_.rank) return waited_ns < 4 * kGraceNs;
    const bool lower_and_alive =
        beat.pid != 0 && beat.rank < beat_.rank && now_ns - beat.stamp_ns < kFreshNs;
    if (lower_and_alive && waited_ns < kGraceNs && !out_of_action(process_state_of(beat.pid)))
      return true;
  }
  // A host whose own ranks wait for another host leaves the report to that one.
  if (launch_.local_size() == launch_.world().size() || waited_ns >= 2 * kGraceNs) return false;
  std::vector<RankSight> sights;
  for (const Beat& beat : heartbeat_.read()) sights.push_back({beat, process_state_of(beat.pid)});
  return !describe_hang(sights, launch_.host_name(), now_ns, 0, LocalView::kOneHostOfSeveral)
              .culprit_found;
}

void Watchdog::end_job(double limit_seconds) {
  beat_.reporting = 1;
  heartbeat_.publish(beat_);
  std::vector<RankSight> sights;
  for (const Beat& beat : heartbeat_.read()) {
    if (beat.pid != 0) sights.push_back({beat, process_state_of(beat.pid)});
  }
  const LocalView view = launch_.local_size() == launch_.world().size()
                             ? LocalView::kWholeJob
                             : LocalView::kOneHostOfSeveral;
  const HangReport report =
      describe_hang(sights, launch_.host_name(), steady_now_ns(), limit_seconds, view);
  write_error(report.text + fmt::format("train: exit {} ({})\n", static_cast<int>(ExitCode::kHang),
                                        report.reason));
  launch_.abort(static_cast<int>(ExitCode::kHang));
}

}  // namespace trireme
