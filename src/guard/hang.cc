#include "guard/hang.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <limits>
#include <tuple>

#include "base/human_format.h"
#include "guard/process_stat.h"

namespace trireme {

void Patience::step_finished(double seconds) {
  ++steps_;
  recent_.push_back(seconds);
  if (recent_.size() > 20) recent_.pop_front();
}

double Patience::of_step() const {
  const double slowest = recent_.empty() ? 0 : *std::max_element(recent_.begin(), recent_.end());
  return std::max(kStepSecondsMin, 5 * slowest);
}

double Patience::limit_seconds(Phase phase) const {
  const bool slow = phase == Phase::kCheckpoint || phase == Phase::kEvaluation || steps_ == 0;
  if (given_seconds_ > 0) {
    const bool working =
        phase != Phase::kCheckpoint && phase != Phase::kEvaluation && phase != Phase::kStart;
    return slow && !working ? std::max(kSlowSecondsMin, kSlowFactor * given_seconds_)
                            : given_seconds_;
  }
  return slow || steps_ < kFirstSteps ? std::max(of_step(), kSlowSeconds) : of_step();
}

double Patience::limit_seconds_of_stopped() const {
  return given_seconds_ > 0 ? given_seconds_ : of_step();
}

double Patience::limit_seconds_of_dead(bool launcher_acts) {
  // Open MPI sends SIGTERM one second after a death that it acts on, and SIGKILL after another;
  // Slurm sends SIGTERM at once, and SIGKILL when its KillWait is over.
  return launcher_acts ? 3.5 : 1.5;
}

char process_state_of(std::int32_t pid) {
  const std::string fields = process_stat(pid);
  if (fields.empty()) {
    // Not to be read (no descriptor is left, /proc is hidden) is not gone.
    return ::kill(pid, 0) != 0 && errno == ESRCH ? '-' : '?';
  }
  return fields.front();
}

std::string_view state_text(char state) {
  switch (state) {
    case 'T':
    case 't':
      return "stopped (SIGSTOP or a debugger)";
    case 'Z':
    case 'X':
      return "dead";
    case '-':
      return "gone";
    case '?':
      return "not seen from here";
    case 'D':
      return "waiting for a device or file system";
    default:
      return "alive";
  }
}

bool is_dead(char process_state) {
  return std::string_view("ZX-").find(process_state) != std::string_view::npos;
}

bool out_of_action(char process_state) {
  return process_state == 'T' || process_state == 't' || is_dead(process_state);
}

namespace {

std::string_view name_of_phase(const Beat& beat) {
  const Phase phase = beat.standing.phase;
  if (phase == Phase::kStart && beat.step > 0) return "between steps";
  return phase < Phase::kCount ? name_of(phase) : "unknown";
}

double seconds_between(std::int64_t begin_ns, std::int64_t end_ns) {
  return static_cast<double>(std::max<std::int64_t>(0, end_ns - begin_ns)) * 1e-9;
}

std::string place_of(const Beat& beat) {
  const std::string step =
      beat.step == 0 ? "before the first step" : fmt::format("step {}", beat.step);
  const Standing& standing = beat.standing;
  const std::string action =
      standing.action == 0 ? ""
                           : fmt::format(", action {} of stage {}, micro-batch {}", standing.action,
                                         standing.virtual_stage, standing.micro_batch);
  return fmt::format("{}, phase {}{}", step, name_of_phase(beat), action);
}

std::string collective_of(const Beat& beat) {
  if (beat.transfer_sequence == 0) return "no collective so far";
  return fmt::format("{} {} #{} on {}, {}", beat.transfer_running != 0 ? "in" : "after",
                     beat.operation.data(), beat.transfer_sequence, beat.channel.data(),
                     format_bytes(beat.transfer_bytes));
}

std::string text_of(const BeatTransfer& transfer) {
  return fmt::format("{} {} of {} on {}", transfer.operation.data(), transfer.id.sequence,
                     format_bytes(transfer.bytes), transfer.channel.data());
}

std::span<const BeatTransfer> recent_of(const Beat& beat) {
  return std::span(beat.recent).first(std::min<std::size_t>(beat.transfers, beat.recent.size()));
}

/// The newest collective of a group that a rank has begun; 0 where none is known.
std::int64_t newest_of(const Beat& beat, std::uint32_t group) {
  std::int64_t newest = 0;
  for (const BeatTransfer& transfer : recent_of(beat)) {
    if (transfer.id.group == group) newest = std::max(newest, transfer.id.sequence);
  }
  return newest;
}

/// The same sequence number of one group, and yet another collective.
bool contradict(const BeatTransfer& a, const BeatTransfer& b) {
  if (a.id.group == 0 || a.id.sequence == 0 || a.id.group != b.id.group ||
      a.id.sequence != b.id.sequence)
    return false;
  const std::string_view operation = a.operation.data();
  if (operation != b.operation.data()) return true;
  return operation != "all_gather_text" && a.bytes != b.bytes;
}

/// What a rank waits in, and another one of the group has not begun; null where there is none.
const BeatTransfer* waits_for(const Beat& waiting, const Beat& other) {
  for (const BeatTransfer& transfer : recent_of(waiting)) {
    if (transfer.running == 0 || transfer.id.sequence == 0) continue;
    const std::int64_t theirs = newest_of(other, transfer.id.group);
    if (theirs > 0 && theirs < transfer.id.sequence) return &transfer;
  }
  return nullptr;
}

std::string contradiction_of(const Beat& a, const Beat& b) {
  for (const BeatTransfer& x : recent_of(a)) {
    for (const BeatTransfer& y : recent_of(b)) {
      if (!contradict(x, y)) continue;
      return fmt::format("rank {} entered {}, rank {} {}", a.rank, text_of(x), b.rank, text_of(y));
    }
  }
  const BeatTransfer* const x = waits_for(a, b);
  const BeatTransfer* const y = waits_for(b, a);
  if (x == nullptr || y == nullptr) return "";
  return fmt::format("rank {} waits in {}, rank {} in {}", a.rank, text_of(*x), b.rank,
                     text_of(*y));
}

/// "rank 0, 1 wait in all_reduce 7 of 4.00 KiB on data.reduce, which rank 2 has not entered"
std::string missing_in_collective(std::span<const RankSight> ranks,
                                  std::span<const RankSight* const> culprits) {
  const auto list = [](std::string& text, int rank) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", rank);
  };
  for (const RankSight& waiting : ranks) {
    for (const BeatTransfer& transfer : recent_of(waiting.beat)) {
      if (transfer.running == 0 || transfer.id.sequence == 0) continue;
      std::string inside, outside;
      for (const RankSight& rank : ranks) {
        const std::int64_t theirs = newest_of(rank.beat, transfer.id.group);
        if (theirs >= transfer.id.sequence) {
          list(inside, rank.beat.rank);
        } else if (theirs > 0 ||
                   std::find(culprits.begin(), culprits.end(), &rank) != culprits.end()) {
          list(outside, rank.beat.rank);
        }
      }
      if (outside.empty()) continue;
      return fmt::format("Rank {} wait{} in {}, which rank {} never entered. ", inside,
                         inside.find(',') == std::string::npos ? "s" : "", text_of(transfer),
                         outside);
    }
  }
  return "";
}

/// The ranks that the others wait for; empty where none stands out.
std::vector<const RankSight*> find_culprits(std::span<const RankSight> ranks, bool whole_job) {
  std::vector<const RankSight*> found;
  const auto collect = [&](bool all_may_be, const auto& guilty) {
    for (const RankSight& rank : ranks) {
      if (guilty(rank)) found.push_back(&rank);
    }
    if (found.size() == ranks.size() && !all_may_be) found.clear();
    return !found.empty();
  };
  // Who stands alone in the job is the one; of several hosts all may keep others waiting.
  const bool alone = whole_job && ranks.size() == 1;
  if (collect(alone || !whole_job,
              [](const RankSight& rank) { return out_of_action(rank.process_state); }))
    return found;
  if (collect(alone || !whole_job,
              [](const RankSight& rank) { return rank.beat.transfer_running == 0; }))
    return found;
  const auto position = [](const RankSight& rank) {
    return std::tuple(rank.beat.step, rank.beat.transfer_sequence);
  };
  const auto lowest = std::min_element(
      ranks.begin(), ranks.end(),
      [&](const RankSight& a, const RankSight& b) { return position(a) < position(b); });
  collect(alone, [&](const RankSight& rank) { return position(rank) == position(*lowest); });
  return found;
}

std::string rank_list(std::span<const RankSight* const> ranks) {
  std::string list;
  for (const RankSight* rank : ranks) {
    if (!list.empty()) list += ", ";
    list += fmt::format("rank {} ({}; {})", rank->beat.rank, state_text(rank->process_state),
                        place_of(rank->beat));
  }
  return list;
}

}  // namespace

std::string describe_desync(std::span<const RankSight> ranks) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    for (std::size_t j = i + 1; j < ranks.size(); ++j) {
      if (out_of_action(ranks[i].process_state) || out_of_action(ranks[j].process_state)) continue;
      std::string found = contradiction_of(ranks[i].beat, ranks[j].beat);
      if (!found.empty()) return found;
    }
  }
  return "";
}

std::string describe_ranks(std::span<const RankSight> ranks, std::string_view host,
                           std::int64_t now_ns) {
  std::string text;
  for (const RankSight& rank : ranks) {
    fmt::format_to(std::back_inserter(text),
                   "  rank {} on {}, pid {}, {}: {}, {}; last progress {:.1f} s ago\n",
                   rank.beat.rank, host, rank.beat.pid, state_text(rank.process_state),
                   place_of(rank.beat), collective_of(rank.beat),
                   seconds_between(rank.beat.progress_ns, now_ns));
  }
  return text;
}

std::string list_hosts(std::span<const HostRanks> hosts) {
  constexpr std::size_t kMost = 8;
  std::string list;
  for (std::size_t i = 0; i < std::min(hosts.size(), kMost); ++i) {
    const std::vector<int>& ranks = hosts[i].ranks;
    const bool in_a_row = ranks.back() - ranks.front() == static_cast<int>(ranks.size()) - 1;
    list += fmt::format("{}{} (", list.empty() ? "" : ", ", hosts[i].name);
    if (ranks.size() == 1) {
      list += fmt::format("rank {})", ranks[0]);
    } else if (in_a_row) {
      list += fmt::format("ranks {} to {})", ranks.front(), ranks.back());
    } else {
      list += fmt::format("ranks {})", fmt::join(ranks, ", "));
    }
  }
  if (hosts.size() > kMost) list += fmt::format(" and {} more", hosts.size() - kMost);
  return list;
}

HangReport describe_hang(std::span<const RankSight> ranks, std::string_view host,
                         std::int64_t now_ns, double limit_seconds, std::string_view elsewhere) {
  double idle_seconds = std::numeric_limits<double>::max();
  for (const RankSight& rank : ranks) {
    idle_seconds = std::min(idle_seconds, seconds_between(rank.beat.progress_ns, now_ns));
  }
  HangReport report;
  const std::vector<const RankSight*> culprits = find_culprits(ranks, elsewhere.empty());
  const std::string desync = describe_desync(ranks);
  const bool stopped = !culprits.empty() && out_of_action(culprits.front()->process_state);
  report.culprit_found = !culprits.empty() || !desync.empty();
  std::string who, advice = "If steps take this long, raise run.hang_timeout_seconds.";
  std::string_view verdict = "Without progress";
  if (!desync.empty() && !stopped) {
    who = desync;
    verdict = "Collectives out of step";
    advice =
        "Ranks in different places of the program wait for each other for ever: a defect of the "
        "program, not slowness (run.check_collectives names the first such call).";
  } else if (!culprits.empty()) {
    who = rank_list(culprits);
    advice = missing_in_collective(ranks, culprits) + advice;
  } else {
    verdict = elsewhere.empty() ? "Cause unknown" : "Silent";
    who = elsewhere.empty()
              ? "all ranks stand at the same place"
              : fmt::format("no rank of {} is behind, but elsewhere: {}", host, elsewhere);
    if (!elsewhere.empty()) {
      advice =
          "A host whose ranks stand in no table above or below has a rank that is stopped, or is "
          "cut off. " +
          advice;
    }
  }
  report.reason = fmt::format("no progress on {} for {:.0f} s: {}", host, idle_seconds, who);
  report.text = fmt::format(
      "error: no progress on {} for {:.0f} s, more than the {:.0f} s allowed here (the job would "
      "hang for ever). {}: {}. {}\n{}",
      host, idle_seconds, limit_seconds, verdict, who, advice, describe_ranks(ranks, host, now_ns));
  return report;
}

}  // namespace trireme
