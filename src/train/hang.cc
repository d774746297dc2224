#include "train/hang.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <tuple>

#include "base/human_format.h"

namespace trireme {

void Patience::step_finished(double seconds) {
  ++steps_;
  recent_.push_back(seconds);
  if (recent_.size() > 20) recent_.pop_front();
}

double Patience::limit_seconds(Phase phase) const {
  const bool slow = phase == Phase::kCheckpoint || phase == Phase::kEvaluation || steps_ == 0;
  if (given_seconds_ > 0) {
    const bool working =
        phase != Phase::kCheckpoint && phase != Phase::kEvaluation && phase != Phase::kStart;
    return slow && !working ? std::max(kSlowSecondsMin, kSlowFactor * given_seconds_)
                            : given_seconds_;
  }
  const double slowest = recent_.empty() ? 0 : *std::max_element(recent_.begin(), recent_.end());
  const double step = std::max(kStepSecondsMin, 5 * slowest);
  return slow || steps_ < kFirstSteps ? std::max(step, kSlowSeconds) : step;
}

char process_state_of(std::int32_t pid) {
  std::string line;
  if (!std::getline(std::ifstream(fmt::format("/proc/{}/stat", pid)), line)) return '-';
  // "PID (name) S ...": the name may hold anything, so count from its last parenthesis.
  const auto name_end = line.rfind(')');
  return name_end == std::string::npos || name_end + 2 >= line.size() ? '?' : line[name_end + 2];
}

bool out_of_action(char process_state) {
  return std::string_view("TtZX-").find(process_state) != std::string_view::npos;
}

namespace {

std::string_view name_of_phase(const Beat& beat) {
  const auto phase = static_cast<Phase>(beat.phase);
  if (phase == Phase::kStart && beat.step > 0) return "between steps";
  return phase < Phase::kCount ? name_of(phase) : "unknown";
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
    case 'D':
      return "waiting for a device or file system";
    default:
      return "alive";
  }
}

double seconds_between(std::int64_t begin_ns, std::int64_t end_ns) {
  return static_cast<double>(std::max<std::int64_t>(0, end_ns - begin_ns)) * 1e-9;
}

std::string place_of(const Beat& beat) {
  const std::string step =
      beat.step == 0 ? "before the first step" : fmt::format("step {}", beat.step);
  return fmt::format("{}, phase {}", step, name_of_phase(beat));
}

std::string collective_of(const Beat& beat) {
  if (beat.transfer_sequence == 0) return "no collective so far";
  return fmt::format("{} {} #{} on {}, {}", beat.transfer_running != 0 ? "in" : "after",
                     beat.operation.data(), beat.transfer_sequence, beat.channel.data(),
                     format_bytes(beat.transfer_bytes));
}

/// The ranks that the others wait for; empty where none stands out.
std::vector<const RankSight*> find_culprits(std::span<const RankSight> ranks) {
  std::vector<const RankSight*> found;
  const auto collect = [&](const auto& guilty) {
    for (const RankSight& rank : ranks) {
      if (guilty(rank)) found.push_back(&rank);
    }
    if (found.size() == ranks.size() && ranks.size() > 1) found.clear();
    return !found.empty();
  };
  if (collect([](const RankSight& rank) { return out_of_action(rank.process_state); }))
    return found;
  if (collect([](const RankSight& rank) { return rank.beat.transfer_running == 0; })) return found;
  const auto position = [](const RankSight& rank) {
    return std::tuple(rank.beat.step, rank.beat.transfer_sequence);
  };
  const auto lowest = std::min_element(
      ranks.begin(), ranks.end(),
      [&](const RankSight& a, const RankSight& b) { return position(a) < position(b); });
  collect([&](const RankSight& rank) { return position(rank) == position(*lowest); });
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

HangReport describe_hang(std::span<const RankSight> ranks, std::string_view host,
                         std::int64_t now_ns, double limit_seconds, LocalView view) {
  double idle_seconds = std::numeric_limits<double>::max();
  for (const RankSight& rank : ranks) {
    idle_seconds = std::min(idle_seconds, seconds_between(rank.beat.progress_ns, now_ns));
  }
  const std::vector<const RankSight*> culprits = find_culprits(ranks);
  HangReport report;
  report.culprit_found = !culprits.empty();
  std::string who = rank_list(culprits);
  if (culprits.empty()) {
    who = view == LocalView::kWholeJob
              ? "all ranks stand at the same place"
              : fmt::format("no rank of {} is behind, look at the other hosts", host);
  }
  report.reason = fmt::format("no progress on {} for {:.0f} s: {}", host, idle_seconds, who);
  auto out = std::back_inserter(report.text);
  fmt::format_to(out,
                 "error: no progress on {} for {:.0f} s, more than the {:.0f} s allowed here (the "
                 "job would hang for "
                 "ever). {}: {}. If steps take this long, raise run.hang_timeout_seconds.\n",
                 host, idle_seconds, limit_seconds,
                 culprits.empty() ? "Cause unknown" : "Without progress", who);
  for (const RankSight& rank : ranks) {
    fmt::format_to(out, "  rank {} on {}, pid {}, {}: {}, {}; last progress {:.1f} s ago\n",
                   rank.beat.rank, host, rank.beat.pid, state_text(rank.process_state),
                   place_of(rank.beat), collective_of(rank.beat),
                   seconds_between(rank.beat.progress_ns, now_ns));
  }
  return report;
}

}  // namespace trireme
