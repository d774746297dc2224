#include "guard/watchdog.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/signal_free_thread.h"
#include "base/stop_flag.h"
#include "guard/launch_guard.h"

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
constexpr std::int64_t kLookNs = kSecondNs / 4;  // at the processes of the other ranks
constexpr std::int64_t kFaultNs = 2 * kSecondNs;
constexpr double kSpeakerSeconds = 1;  // as kGraceNs, where a rank is dead

// One write: ranks' lines do not mix; without the logger, whose lock a hung thread may hold.
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

/// Of the job, as list_hosts; "" where there is one host. Collective.
std::string other_hosts(const Launch& launch) {
  if (launch.local_size() == launch.job().size()) return "";
  // Hosts may bear one name, but each has one lowest rank.
  std::array<std::int64_t, 1> lowest{-launch.job().rank()};
  launch.host().maximum(lowest);
  const std::vector<std::string> hosts =
      launch.job().all_gather_text(fmt::format("{} {}", -lowest[0], launch.host_name()));
  const std::string& mine = hosts[static_cast<std::size_t>(launch.job().rank())];
  std::map<std::string, HostRanks> others;
  std::vector<std::string> order;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    if (hosts[rank] == mine) continue;
    HostRanks& host = others[hosts[rank]];
    if (host.ranks.empty()) order.push_back(hosts[rank]);
    host.name = hosts[rank].substr(hosts[rank].find(' ') + 1);
    host.ranks.push_back(static_cast<int>(rank));
  }
  std::vector<HostRanks> list;
  for (const std::string& host : order) list.push_back(others[host]);
  return list_hosts(list);
}
}  // namespace

Watchdog::Watchdog(Launch& launch, Heartbeat& heartbeat, double hang_timeout_seconds,
                   EndClaim* claim)
    : launch_(launch), heartbeat_(heartbeat), claim_(claim), patience_(hang_timeout_seconds) {
  beat_.pid = ::getpid();
  beat_.pid_namespace = this_pid_namespace();
  beat_.rank = launch_.job().rank();
  beat_.stamp_ns = beat_.progress_ns = steady_now_ns();
  publish(beat_.stamp_ns);
  launch_.host().barrier();  // from here on each is seen by the others
  elsewhere_ = other_hosts(launch);
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
    to.id = recent[i].id;
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

void Watchdog::judge(std::int64_t now_ns) {
  if (now_ns - looked_ns_ > kLookNs && launch_.local_size() > 1) {
    looked_ns_ = now_ns;
    const std::vector<RankSight> sights = look();
    one_is_stopped_ = std::any_of(sights.begin(), sights.end(), [](const RankSight& sight) {
      return sight.process_state == 'T' || sight.process_state == 't';
    });
    end_with_the_dead(sights, now_ns);
  }
  if (now_ns - asked_ns_ > kLookNs) {
    asked_ns_ = now_ns;
    end_with_fault(now_ns);
  }
  double limit_seconds = patience_.limit_seconds(beat_.standing.phase);
  if (one_is_stopped_)
    limit_seconds = std::min(limit_seconds, patience_.limit_seconds_of_stopped());
  if (static_cast<double>(now_ns - beat_.progress_ns) * 1e-9 <= limit_seconds) {
    expired_ns_ = 0;
    reported_ = false;
    return;
  }
  if (expired_ns_ == 0) expired_ns_ = now_ns;
  if (!elsewhere_.empty()) {
    if (!reported_ && speaks_for_host(now_ns)) {
      reported_ = true;
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
  report(ExitCode::kHang);
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

void Watchdog::end_with_the_dead(const std::vector<RankSight>& sights, std::int64_t now_ns) {
  std::vector<RankSight> dead;
  for (const RankSight& sight : sights) {
    if (is_dead(sight.process_state)) dead.push_back(sight);
  }
  if (dead.empty()) {
    dead_ns_ = 0;
    return;
  }
  if (dead_ns_ == 0) dead_ns_ = now_ns;
  const double late_seconds = static_cast<double>(now_ns - dead_ns_) * 1e-9 -
                              Patience::limit_seconds_of_dead(stop_signal() == SIGTERM);
  if (late_seconds < 0) return;
  // Who has spoken ends the ranks of all hosts by way of the launcher, which takes its time.
  for (const RankSight& sight : sights) {
    if (sight.beat.reporting != 0) ::_exit(sight.beat.reporting);
  }
  if (claim_ != nullptr && claim_->taken() != 0) ::_exit(claim_->taken());
  if (late_seconds < kSpeakerSeconds && !speaks_for_host(now_ns)) return;
  report(ExitCode::kInternal);
  write_error(fmt::format(
      "error: a rank has died (killed, or a crash that the launcher may name); the others end "
      "with it.\n{}train: exit {} (rank {} on {} is gone)\n",
      describe_ranks(dead, launch_.host_name(), now_ns), static_cast<int>(ExitCode::kInternal),
      dead.front().beat.rank, launch_.host_name()));
  launch_.abort(static_cast<int>(ExitCode::kInternal));
}

void Watchdog::end_with_fault(std::int64_t now_ns) {
  const std::string fault = launch_.transfer_faults().first();
  // A rank of this host that has died is the cause, and told as that.
  if (fault.empty() || dead_ns_ != 0) {
    fault_ns_ = 0;
    return;
  }
  if (fault_ns_ == 0) fault_ns_ = now_ns;
  // Who waits for the transfer may find it first, and others' ranks die of it.
  if (now_ns - fault_ns_ < kFaultNs) return;
  const ExitCode code = step_ > 0 ? ExitCode::kDevice : ExitCode::kEnvironment;
  report(code);
  const std::string_view then =
      step_ > 0 ? "started again, the run goes on at its newest checkpoint"
                : "nothing has been trained yet; a restart is likely to find the same";
  write_error(fmt::format(
      "error: rank {} on {}, step {}: {}. NCCL_DEBUG=INFO tells more; {}.\ntrain: exit {} ({})\n",
      beat_.rank, launch_.host_name(), beat_.step, fault, then, static_cast<int>(code), fault));
  launch_.abort(static_cast<int>(code));
}

void Watchdog::report(ExitCode code) {
  if (claim_ != nullptr && !claim_->take(static_cast<int>(code))) ::_exit(claim_->taken());
  beat_.reporting = static_cast<int>(code);
  heartbeat_.publish(beat_);
}

bool Watchdog::speaks_for_host(std::int64_t now_ns) const {
  // The guards of ranks that have not come as far as this know processes alone, and choose by them.
  const std::vector<Beat> beats = heartbeat_.read();
  const bool some_start =
      std::any_of(beats.begin(), beats.end(), [](const Beat& beat) { return beat.pid == 0; });
  if (some_start) return speaker_of(siblings()) == ::getpid();
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
  // A host whose own ranks wait for another host leaves the report to that one.
  const bool cause_is_here =
      elsewhere_.empty() ||
      describe_hang(sights, launch_.host_name(), now_ns, 0, elsewhere_).culprit_found;
  return waited_ns < (speaks_for_host(now_ns) ? 0 : kGraceNs) + (cause_is_here ? 0 : kGraceNs);
}

void Watchdog::end_job(double limit_seconds) {
  report(ExitCode::kHang);
  const HangReport found =
      describe_hang(look(), launch_.host_name(), steady_now_ns(), limit_seconds, elsewhere_);
  write_error(found.text + fmt::format("train: exit {} ({})\n", static_cast<int>(ExitCode::kHang),
                                       found.reason));
  launch_.abort(static_cast<int>(ExitCode::kHang));
}

}  // namespace trireme
