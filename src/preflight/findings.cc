#include "preflight/findings.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "base/human_format.h"
#include "device/topology.h"
#include "plan/op_measure.h"

namespace trireme {

namespace {

/// By how much clocks may differ: `make`, caches of files and the times in logs begin to err there.
constexpr double kClockSeconds = 1;
/// Of hosts with other work nothing finer is known.
constexpr double kBusyFloor = 0.5;
constexpr std::size_t kRangesShown = 16;

int shared_cpus(const CoreUse& a, const CoreUse& b) {
  std::vector<int> both;
  std::set_intersection(a.cpus.begin(), a.cpus.end(), b.cpus.begin(), b.cpus.end(),
                        std::back_inserter(both));
  return static_cast<int>(both.size());
}

void add_ranks(Finding& finding, std::span<const int> ranks) {
  finding.ranks.insert(finding.ranks.end(), ranks.begin(), ranks.end());
  std::sort(finding.ranks.begin(), finding.ranks.end());
  finding.ranks.erase(std::unique(finding.ranks.begin(), finding.ranks.end()), finding.ranks.end());
}

void say(std::string& text, const std::string& more) { text += (text.empty() ? "" : "; ") + more; }

/// "41.2 to 43.0 GFLOP/s", or one where they read alike.
std::string range_of(std::span<const Rate> rates, const RateText& text) {
  double least = INFINITY, most = 0;
  for (const Rate& rate : rates) {
    if (rate.value <= 0) continue;
    least = std::min(least, rate.value);
    most = std::max(most, rate.value);
  }
  if (most == 0) return "not measured";
  const std::string low = text(least), high = text(most);
  return low == high ? low : low + " to " + high;
}

/// The ranks each of whose groups is slow, where these are two or more.
std::set<int> slow_in_all(std::span<const GroupRate> groups, const std::set<std::size_t>& slow) {
  std::map<int, std::pair<int, int>> counts;  // by rank: groups, slow ones
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].rate.value <= 0) continue;
    for (const int rank : groups[i].ranks) {
      ++counts[rank].first;
      counts[rank].second += slow.count(i) > 0 ? 1 : 0;
    }
  }
  std::set<int> ranks;
  for (const auto& [rank, count] : counts)
    if (count.first > 1 && count.first == count.second) ranks.insert(rank);
  return ranks;
}

}  // namespace

std::string_view name_of(FindingStatus status) {
  switch (status) {
    case FindingStatus::kOk:
      return "ok";
    case FindingStatus::kNote:
      return "note";
    case FindingStatus::kOdd:
      return "odd";
    case FindingStatus::kSlow:
      return "slow";
  }
  return "";
}

RankHosts::RankHosts(std::vector<int> index, std::vector<std::string> names)
    : index_(std::move(index)), names_(std::move(names)) {}

std::vector<int> RankHosts::ranks_of(int host) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < this->ranks(); ++rank)
    if (of(rank) == host) ranks.push_back(rank);
  return ranks;
}

bool RankHosts::even() const {
  std::set<std::size_t> sizes;
  for (int host = 0; host < hosts(); ++host) sizes.insert(ranks_of(host).size());
  return sizes.size() <= 1;
}

std::string RankHosts::text(std::span<const int> ranks) const {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  std::map<int, std::vector<int>> by_host;
  for (const int rank : ranks) by_host[of(rank)].push_back(rank);
  int shown = 0;
  for (const auto& [host, of_host] : by_host) {
    if (shown == kRangesShown)
      return text + fmt::format(" and {} hosts", by_host.size() - kRangesShown);
    text += fmt::format("{}{} on {}", shown++ == 0 ? "" : ", ", range_text(of_host), name(host));
  }
  return text;
}

Finding hosts_apart(const RankHosts& hosts) {
  Finding finding{
      "hosts",
      FindingStatus::kOk,
      {},
      fmt::format("{} on {}", counted(hosts.ranks(), "rank"), counted(hosts.hosts(), "host")),
      "",
      ""};
  if (!hosts.even()) {
    finding.status = FindingStatus::kNote;
    finding.advice =
        "hosts have different numbers of ranks, so groups of ranks are not compared; start as "
        "many on each (srun --ntasks-per-node=N, mpirun --map-by ppr:N:node)";
  }
  std::map<std::string, std::vector<int>> by_name;
  for (int host = 0; host < hosts.hosts(); ++host) by_name[hosts.name(host)].push_back(host);
  for (const auto& [name, of_name] : by_name) {
    if (of_name.size() == 1) continue;
    finding.status = FindingStatus::kOdd;
    finding.found = fmt::format("{} are called {}", counted(std::ssize(of_name), "host"), name);
    finding.expected = "a name of its own for each";
    finding.advice = "rename them: NCCL, launchers and logs tell hosts by their names";
    for (const int host : of_name) add_ranks(finding, hosts.ranks_of(host));
  }
  return finding;
}

Finding equal_everywhere(std::string name, std::span<const std::string> of_rank,
                         const RankHosts& hosts, std::string advice) {
  Finding finding{std::move(name), FindingStatus::kOk, {}, "", "", ""};
  std::map<std::string, std::vector<int>> ranks_of_text;
  for (std::size_t rank = 0; rank < of_rank.size(); ++rank)
    if (!of_rank[rank].empty()) ranks_of_text[of_rank[rank]].push_back(static_cast<int>(rank));
  if (ranks_of_text.empty()) return finding;
  const auto usual = std::max_element(ranks_of_text.begin(), ranks_of_text.end(),
                                      [](const auto& a, const auto& b) {
                                        return std::pair(a.second.size(), -a.second.front()) <
                                               std::pair(b.second.size(), -b.second.front());
                                      });
  if (ranks_of_text.size() == 1) {
    finding.found = usual->first;
    return finding;
  }
  finding.status = FindingStatus::kOdd;
  finding.expected = usual->first;
  finding.advice = std::move(advice);
  for (const auto& [text, ranks] : ranks_of_text) {
    if (text == usual->first) continue;
    say(finding.found, hosts.text(ranks) + ": " + text);
    add_ranks(finding, ranks);
  }
  return finding;
}

double median_of_kind(std::span<const Rate> rates, std::uint64_t kind) {
  std::vector<double> values;
  for (const Rate& rate : rates)
    if (rate.kind == kind && rate.value > 0) values.push_back(rate.value);
  return median_of(std::move(values));
}

std::vector<std::size_t> below(std::span<const Rate> rates, double floor) {
  std::map<std::uint64_t, double> medians;
  for (const Rate& rate : rates)
    if (!medians.contains(rate.kind)) medians[rate.kind] = median_of_kind(rates, rate.kind);
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < rates.size(); ++i)
    if (rates[i].value > 0 && rates[i].value < floor * medians[rates[i].kind]) found.push_back(i);
  return found;
}

Finding fast_everywhere(std::string name, std::span<const Rate> of_rank, double floor,
                        const RankHosts& hosts, const RateText& text) {
  std::vector<GroupRate> alone;
  for (std::size_t rank = 0; rank < of_rank.size(); ++rank)
    alone.push_back({{static_cast<int>(rank)}, of_rank[rank]});
  return fast_links(std::move(name), alone, floor, hosts, text);
}

std::vector<Rate> rates_of(std::span<const Speed> speeds) {
  std::vector<Rate> rates;
  for (const Speed& speed : speeds) rates.push_back({speed.per_second, speed.kind});
  return rates;
}

bool hosts_are_busy(std::span<const Speed> of_rank) {
  std::vector<double> shares;
  for (const Speed& speed : of_rank) shares.push_back(speed.share);
  return median_of(std::move(shares)) < kDeviceFloor;
}

Finding speeds_alike(std::string name, std::span<const Speed> of_rank, const RankHosts& hosts,
                     const RateText& text) {
  Finding finding = fast_everywhere(name, rates_of(of_rank), kDeviceFloor, hosts, text);
  if (!finding.failed()) return finding;
  if (!hosts_are_busy(of_rank)) {
    double share = 1;
    for (const int rank : finding.ranks)
      share = std::min(share, of_rank[static_cast<std::size_t>(rank)].share);
    if (share < kDeviceFloor)
      finding.advice =
          fmt::format("other programs take its cores, which it had for {:.0f} % of the time (top)",
                      100 * share);
    return finding;
  }
  std::vector<Rate> on_core;
  double least = 1, most = 0;
  for (const Speed& speed : of_rank) {
    on_core.push_back({speed.share > 0 ? speed.per_second / speed.share : 0, speed.kind});
    least = std::min(least, speed.share);
    most = std::max(most, speed.share);
  }
  Finding by_core = fast_everywhere(std::move(name), on_core, kBusyFloor, hosts, text);
  if (by_core.failed()) return by_core;
  finding = {std::move(finding.name), FindingStatus::kNote, {}, range_of(rates_of(of_rank), text)};
  finding.advice = fmt::format(
      "ranks are not compared: other programs take their cores, which they had for {:.0f} to "
      "{:.0f} % of the time; look again without these",
      100 * least, 100 * most);
  return finding;
}

Finding fast_links(std::string name, std::span<const GroupRate> groups, double floor,
                   const RankHosts& hosts, const RateText& text) {
  Finding finding{std::move(name), FindingStatus::kOk, {}, "", "", ""};
  std::vector<Rate> rates;
  for (const GroupRate& group : groups) rates.push_back(group.rate);
  const std::vector<std::size_t> found = below(rates, floor);
  if (found.empty()) {
    finding.found = range_of(rates, text);
    return finding;
  }
  finding.status = FindingStatus::kSlow;
  const std::set<std::size_t> slow(found.begin(), found.end());
  const std::set<int> at_fault = slow_in_all(groups, slow);
  std::set<std::string> medians;
  for (const std::size_t i : found) {
    std::vector<int> blamed;
    for (const int rank : groups[i].ranks)
      if (at_fault.count(rank) > 0) blamed.push_back(rank);
    if (blamed.empty()) blamed = groups[i].ranks;  // who are slow with each other alone
    add_ranks(finding, blamed);
    say(finding.found, hosts.text(groups[i].ranks) + ": " + text(rates[i].value));
    medians.insert(text(median_of_kind(rates, rates[i].kind)));
  }
  finding.expected = fmt::format("median {}", fmt::join(medians, ", "));
  return finding;
}

double threads_of_cpu(std::span<const CoreUse> use, std::size_t mine) {
  double threads = 0, all = 0;
  for (const CoreUse& other : use) {
    all += other.threads;
    threads += other.threads * shared_cpus(use[mine], other) /
               static_cast<double>(other.cpus.size() * use[mine].cpus.size());
  }
  return use[mine].quota > 0 ? std::max(threads, all / use[mine].quota) : threads;
}

TurnOrder turns_of(std::span<const CoreUse> use) {
  TurnOrder turns;
  turns.of.assign(use.size(), 0);
  bool crowded = false;
  for (std::size_t i = 0; i < use.size(); ++i)
    crowded = crowded || threads_of_cpu(use, i) > kCrowdedLoad;
  if (!crowded) return turns;
  for (std::size_t i = 0; i < use.size(); ++i) {
    std::set<int> taken;
    for (std::size_t j = 0; j < i; ++j)
      if (shared_cpus(use[i], use[j]) > 0) taken.insert(turns.of[j]);
    while (taken.count(turns.of[i]) > 0) ++turns.of[i];
    turns.count = std::max(turns.count, turns.of[i] + 1);
  }
  return turns;
}

Finding cores_apart(std::span<const double> load, const RankHosts& hosts) {
  Finding finding{"cores", FindingStatus::kOk, {}, "each thread has a core of its own", "", ""};
  const auto [least, most] = std::minmax_element(load.begin(), load.end());
  if (*most <= kCrowdedLoad) return finding;
  finding.found = fmt::format("up to {:.2g} threads share a core", *most);
  if (*least > kCrowdedLoad) {
    finding.status = FindingStatus::kNote;
    finding.advice =
        "products were timed in turns, and links not compared; fewer ranks a host wait less for "
        "each other";
    return finding;
  }
  finding.status = FindingStatus::kOdd;
  finding.expected = "cores of their own, as the other ranks have";
  finding.advice =
      "all wait for these ranks; let the program place them (mpirun --bind-to none), or give each "
      "rank cores of its own, and start as many on each host";
  for (std::size_t rank = 0; rank < load.size(); ++rank)
    if (load[rank] > kCrowdedLoad) finding.ranks.push_back(static_cast<int>(rank));
  finding.found = hosts.text(finding.ranks) + ": " + finding.found;
  return finding;
}

Finding clocks_agree(std::span<const ClockOffset> of_host, const RankHosts& hosts) {
  Finding finding{"clocks", FindingStatus::kOk, {}, "", "", ""};
  std::vector<double> offsets;
  for (const ClockOffset& offset : of_host) offsets.push_back(offset.seconds);
  // Of two nobody can say which is wrong: the second beside the first.
  const double median = of_host.size() == 2 ? of_host.front().seconds : median_of(offsets);
  double widest = 0;
  for (int host = 0; host < std::ssize(of_host); ++host) {
    const ClockOffset& offset = of_host[static_cast<std::size_t>(host)];
    const double off = offset.seconds - median;
    widest = std::max(widest, std::abs(off));
    if (std::abs(off) - offset.error_seconds <= kClockSeconds) continue;
    finding.status = FindingStatus::kOdd;
    add_ranks(finding, hosts.ranks_of(host));
    say(finding.found, fmt::format("{}: {} {}", hosts.name(host), format_duration(std::abs(off)),
                                   off > 0 ? "ahead" : "behind"));
  }
  if (finding.status == FindingStatus::kOk) {
    finding.found =
        hosts.hosts() == 1 ? "one host" : "within " + format_duration(widest) + " of each other";
    return finding;
  }
  finding.expected = fmt::format("within {} s of the others", kClockSeconds);
  finding.advice = "set the clock of that host (chronyc tracking, timedatectl)";
  return finding;
}

}  // namespace trireme
