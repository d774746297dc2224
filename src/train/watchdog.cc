#include "train/watchdog.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/signal_free_thread.h"

namespace trireme {

namespace {
constexpr auto kInterval = std::chrono::milliseconds(50);  // also the age of a stopped rank's entry
constexpr std::int64_t kSecondNs = 1'000'000'000;
constexpr std::int64_t kPauseNs =
    5 * kSecondNs;  // between two looks: this process itself was stopped
constexpr std::int64_t kFreshNs = 5 * kSecondNs;  // the age of an entry whose watchdog lives
constexpr std::int64_t kGraceNs = 5 * kSecondNs;  // for the rank or host that should report first
// From the hosts' tables to the end: those of other hosts arrive through the launcher.
constexpr std::int64_t kTablesNs = 1 * kSecondNs;
// Launchers end a job within a second or two of a rank's death, and know its code better.
constexpr std::int64_t kGoneNs = 3 * kSecondNs;

// One write, so that lines of two ranks do not mix; without the logger, whose lock a hung thread
// may hold.
void write_error(std::string_view text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

std::uint32_t this_pid_namespace() {
  struct stat status {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? static_cast<std::uint32_t>(status.st_ino) : 0;
}

void copy_text(std::string_view text, std::array<char, 24>& to) {
  to.fill('\0');
  text.copy(to.data(), to.size() - 1);
}
}  // namespace

Watchdog::Watchdog(Launch& launch, Heartbeat& heartbeat, double hang_timeout_seconds)
    : launch_(launch), heartbeat_(heartbeat), patience_(hang_timeout_seconds) {
  beat_.pid = ::getpid();
  beat_.pid_namespace = this_pid_namespace();
  beat_.rank = launch_.world().rank();
  beat_.stamp_ns = beat_.progress_ns = steady_now_ns();
  publish(beat_.stamp_ns);
  launch_.host().barrier();  // from here on each is seen by the others
  thread_ = signal_free_thread([this] { run(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
  beat_.leaving = 1;
  heartbeat_.publish(beat_);
}

void Watchdog::step_finished(std::int64_t step, double seconds) {
  progress();
  const std::lock_guard lock(mutex_);
  patience_.step_finished(seconds);
  step_ = step;
  publish(steady_now_ns());
}

void Watchdog::watch_writer(const std::atomic<std::int64_t>* last_progress_ns) {
  const std::lock_guard lock(mutex_);
  writer_ = last_progress_ns;
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const std::int64_t now_ns = steady_now_ns();
    publish(now_ns);
    judge_writer(now_ns);
    judge(now_ns);
    wake_.wait_for(lock, kInterval);
  }
}

void Watchdog::publish_transfers(Beat& beat) const {
  const TransferRecord transfer = launch_.flight_recorder().current();
  beat.sequence = launch_.flight_recorder().last_sequence();
  beat.transfer_sequence = transfer.sequence;
  beat.transfer_bytes = transfer.bytes;
  beat.transfer_running = transfer.sequence != 0 && transfer.end_ns == 0 ? 1 : 0;
  copy_text(transfer.operation, beat.operation);
  beat.channel = transfer.channel;
  std::array<TransferRecord, std::tuple_size_v<decltype(beat.recent)>> recent;
  beat.transfers = static_cast<std::uint32_t>(launch_.flight_recorder().recent(recent));
  for (std::size_t i = 0; i < beat.transfers; ++i) {
    BeatTransfer& to = beat.recent[i];
    to.place = recent[i].place;
    to.bytes = recent[i].bytes;
    to.running = recent[i].end_ns == 0 ? 1 : 0;
    copy_text(recent[i].operation, to.operation);
    to.channel = recent[i].channel;
  }
}

void Watchdog::publish(std::int64_t now_ns) {
  Beat next = beat_;
  next.step = step_ == 0 ? 0 : step_ + 1;
  publish_transfers(next);
  const auto place = [](const Beat& beat) {
    return std::tuple(beat.step, beat.sequence, beat.transfer_sequence, beat.transfer_running);
  };
  const std::int64_t progress = progress_.load(std::memory_order_relaxed);
  // Ctrl-Z and `fg`, or a suspended machine: time in which nobody could have made progress.
  if (now_ns - beat_.stamp_ns > kPauseNs) {
    next.progress_ns += now_ns - beat_.stamp_ns;
    writer_progress_ns_ += now_ns - beat_.stamp_ns;
  }
  const std::uint64_t standing = heartbeat_.standing().load(std::memory_order_relaxed);
  if (place(next) != place(beat_) || standing != seen_standing_ || progress != seen_progress_)
    next.progress_ns = now_ns;
  seen_standing_ = standing;
  next.standing = unpack_standing(standing);
  const std::int64_t writer_stamp =
      writer_ == nullptr ? 0 : writer_->load(std::memory_order_relaxed);
  if (std::exchange(writer_stamp_, writer_stamp) != writer_stamp)
    writer_progress_ns_ = writer_stamp;
  // The main thread waits for the writer then.
  if (next.standing.phase == Phase::kCheckpoint)
    next.progress_ns = std::max(next.progress_ns, writer_progress_ns_);
  next.stamp_ns = now_ns;
  seen_progress_ = progress;
  beat_ = next;
  heartbeat_.publish(beat_);
}

std::vector<RankSight> Watchdog::look() const {
  std::vector<RankSight> sights;
  for (const Beat& beat : heartbeat_.read()) {
    if (beat.pid == 0 || beat.leaving != 0) continue;
    const bool seen = beat.pid_namespace == beat_.pid_namespace;
    sights.push_back({beat, seen ? process_state_of(beat.pid) : '?'});
  }
  return sights;
}

LocalView Watchdog::view() const {
  return launch_.local_size() == launch_.world().size() ? LocalView::kWholeJob
                                                        : LocalView::kOneHostOfSeveral;
}

void Watchdog::judge(std::int64_t now_ns) {
  if (now_ns - looked_ns_ > kSecondNs && launch_.local_size() > 1) {
    looked_ns_ = now_ns;
    const std::vector<RankSight> sights = look();
    one_is_stopped_ = std::any_of(sights.begin(), sights.end(), [](const RankSight& sight) {
      return sight.process_state == 'T' || sight.process_state == 't';
    });
    end_where_a_rank_is_gone(now_ns);
  }
  double limit_seconds = patience_.limit_seconds(beat_.standing.phase);
  if (one_is_stopped_)
    limit_seconds = std::min(limit_seconds, patience_.limit_seconds_of_stopped());
  if (static_cast<double>(now_ns - beat_.progress_ns) * 1e-9 <= limit_seconds) {
    expired_ns_ = 0;
    told_ = false;
    return;
  }
  if (expired_ns_ == 0) expired_ns_ = now_ns;
  if (view() == LocalView::kOneHostOfSeveral) {
    if (!told_ && speaks_for_host(now_ns)) {
      told_ = true;
      write_error(describe_ranks(look(), launch_.host_name(), now_ns));
    }
    if (now_ns - expired_ns_ < kTablesNs) return;
  }
  if (!someone_else_reports(now_ns)) end_job(limit_seconds);
}

void Watchdog::judge_writer(std::int64_t now_ns) {
  if (writer_stamp_ == 0) return;
  const double idle_seconds = static_cast<double>(now_ns - writer_progress_ns_) * 1e-9;
  const double limit_seconds = patience_.limit_seconds(Phase::kCheckpoint);
  if (idle_seconds <= limit_seconds) return;
  for (const Beat& beat : heartbeat_.read()) {
    if (beat.reporting != 0 && beat.rank != beat_.rank) return;
  }
  beat_.reporting = 1;
  heartbeat_.publish(beat_);
  const std::string reason = fmt::format(
      "no progress on {} for {:.0f} s: rank {} (the thread that writes its checkpoint; "
      "step {}, phase {})",
      launch_.host_name(), idle_seconds, beat_.rank, beat_.step, name_of(Phase::kCheckpoint));
  write_error(
      fmt::format("error: {}, more than the {:.0f} s allowed here: nothing was written and "
                  "nothing became durable, so no step would be saved any more. Is the file "
                  "system away? If single writes take this long, raise "
                  "run.hang_timeout_seconds.\n{}train: exit {} ({})\n",
                  reason, limit_seconds, describe_ranks(look(), launch_.host_name(), now_ns),
                  static_cast<int>(ExitCode::kHang), reason));
  launch_.abort(static_cast<int>(ExitCode::kHang));
}

void Watchdog::end_where_a_rank_is_gone(std::int64_t now_ns) {
  const RankSight* gone = nullptr;
  const std::vector<RankSight> sights = look();
  for (const RankSight& sight : sights) {
    if (gone == nullptr &&
        std::string_view("ZX-").find(sight.process_state) != std::string_view::npos)
      gone = &sight;
  }
  if (gone == nullptr) {
    gone_ns_ = 0;
    return;
  }
  if (gone_ns_ == 0) gone_ns_ = now_ns;
  if (now_ns - gone_ns_ < kGoneNs) return;
  if (!speaks_for_host(now_ns) && now_ns - gone_ns_ < kGoneNs + kGraceNs) return;
  constexpr int kCode = static_cast<int>(ExitCode::kInternal);
  write_error(fmt::format(
      "error: a rank has died (killed, or a crash that the launcher may name); the others end "
      "with it.\n{}train: exit {} (rank {} on {} is gone)\n",
      describe_ranks(std::span(gone, 1), launch_.host_name(), now_ns), kCode, gone->beat.rank,
      launch_.host_name()));
  launch_.abort(kCode);
}

bool Watchdog::speaks_for_host(std::int64_t now_ns) const {
  for (const RankSight& sight : look()) {
    const bool alive =
        now_ns - sight.beat.stamp_ns < kFreshNs && !out_of_action(sight.process_state);
    if (alive && sight.beat.rank < beat_.rank) return false;
  }
  return true;
}

bool Watchdog::someone_else_reports(std::int64_t now_ns) const {
  const std::int64_t waited_ns = now_ns - expired_ns_;
  const std::vector<RankSight> sights = look();
  for (const RankSight& sight : sights) {
    // It has spoken; a loaded machine may take long to end the ranks.
    if (sight.beat.reporting != 0 && sight.beat.rank != beat_.rank) return waited_ns < 4 * kGraceNs;
  }
  if (waited_ns < kGraceNs && !speaks_for_host(now_ns)) return true;
  // A host whose own ranks wait for another host leaves the report to that one.
  if (view() == LocalView::kWholeJob || waited_ns >= 2 * kGraceNs) return false;
  return !describe_hang(sights, launch_.host_name(), now_ns, 0, view()).culprit_found;
}

void Watchdog::end_job(double limit_seconds) {
  beat_.reporting = 1;
  heartbeat_.publish(beat_);
  const HangReport report =
      describe_hang(look(), launch_.host_name(), steady_now_ns(), limit_seconds, view());
  write_error(report.text + fmt::format("train: exit {} ({})\n", static_cast<int>(ExitCode::kHang),
                                        report.reason));
  launch_.abort(static_cast<int>(ExitCode::kHang));
}

}  // namespace trireme
