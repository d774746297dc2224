#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "comm/gpu_channel.h"
#include "device/gpu.h"
#include "preflight/inspection.h"
#include "preflight/link_probe.h"

namespace trireme {

namespace {

/// Of the median: what many share varies, and a host's pairs may be near and far ones.
constexpr double kGroupFloor = 0.7, kPairFloor = 0.5;
constexpr std::int64_t kReduceBytes = 4 << 20, kGpuReduceBytes = 64 << 20;
constexpr std::int64_t kPairBytes = 4 << 20, kGpuPairBytes = 32 << 20, kHostGpuBytes = 1 << 16;

std::int64_t bytes_of(const Inspection& at, std::int64_t cpu, std::int64_t gpu) {
  if (!at.on_gpu()) return cpu;
  return gpu::backend_name() == "cuda" ? gpu : kHostGpuBytes;
}

/// The groups that a run's sums go over: of each axis of its mesh, or all; in hosts and across.
std::vector<std::pair<std::string, int>> groups_of(const Inspection& at) {
  std::vector<std::pair<std::string, int>> groups;
  if (at.prepared == nullptr) {
    groups.emplace_back("all-reduce", 0);
  } else {
    const MeshShape& mesh = at.prepared->run.mesh;
    for (const Axis axis : kAxes) {
      if (mesh.extent(axis) == 1) continue;
      groups.emplace_back(fmt::format("all-reduce, {}", name_of(axis)),
                          mesh.group_color({axis}, at.job.rank()));
    }
  }
  if (at.hosts.hosts() > 1 && at.hosts.hosts() < at.job.size()) {
    groups.emplace_back("all-reduce in a host", at.hosts.of(at.job.rank()));
    groups.emplace_back("all-reduce across hosts", at.launch.local_rank());
  }
  return groups;
}

/// What is said of links, and why they did not compare.
void add_links(Inspection& at, Finding finding, bool compared, const char* advice) {
  finding.advice = advice;
  if (!compared)
    finding.found += fmt::format(" (not compared: {})", at.crowded ? "ranks share cores"
                                                        : at.busy  ? "the hosts have other work"
                                                                   : "hosts are uneven");
  at.add(std::move(finding));
}

/// Those that span as many hosts compare.
std::vector<GroupRate> rates_of_groups(const Inspection& at, const std::vector<int>& colors,
                                       const std::vector<double>& of_rank) {
  std::map<int, GroupRate> by_color;
  for (std::size_t rank = 0; rank < colors.size(); ++rank) {
    GroupRate& group = by_color[colors[rank]];
    group.ranks.push_back(static_cast<int>(rank));
    group.rate.value =
        group.ranks.size() == 1 ? of_rank[rank] : std::min(group.rate.value, of_rank[rank]);
  }
  std::vector<GroupRate> groups;
  for (auto& [color, group] : by_color) {
    std::set<int> spanned;
    for (const int rank : group.ranks) spanned.insert(at.hosts.of(rank));
    group.rate.kind =
        at.links_compare() && at.hosts.even() ? spanned.size() : static_cast<std::uint64_t>(color);
    groups.push_back(std::move(group));
  }
  return groups;
}

void check_group(Inspection& at, const std::string& name, int color, Communicator& group,
                 Communicator& channel, Context& context) {
  const std::vector<int> colors = gathered(at.job, color);
  std::vector<GroupRate> rates;
  double mine = 0;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    mine = std::max(mine, all_reduce_rate(group, channel, context,
                                          bytes_of(at, kReduceBytes, kGpuReduceBytes)));
    rates = rates_of_groups(at, colors, gathered(at.job, mine));
    std::vector<Rate> plain;
    for (const GroupRate& each : rates) plain.push_back(each.rate);
    if (below(plain, kGroupFloor).empty()) break;
  }
  add_links(at, fast_links(name, rates, kGroupFloor, at.hosts, bandwidth_text),
            at.links_compare() && at.hosts.even(), "the pairs below tell which link or rank it is");
}

/// `of_rank`: of rank r the rounds from r x rounds on.
std::vector<GroupRate> pairs_of(const Inspection& at, const std::vector<Rate>& of_rank,
                                int rounds) {
  std::vector<GroupRate> pairs;
  for (int rank = 0; rank < at.job.size(); ++rank) {
    for (int round = 0; round < rounds; ++round) {
      const int partner = partner_of(rank, round, at.job.size());
      if (partner < rank) continue;  // there is none, or it has told
      Rate rate = of_rank[static_cast<std::size_t>(rank * rounds + round)];
      if (!at.links_compare()) rate.kind = ~std::uint64_t{0} - pairs.size();
      pairs.push_back({{rank, partner}, rate});
    }
  }
  return pairs;
}

void check_pairs(Inspection& at, Communicator& world, Context& context) {
  const int rounds = pair_rounds(at.job.size());
  std::vector<Rate> mine(static_cast<std::size_t>(rounds));
  std::vector<GroupRate> pairs;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    for (int round = 0; round < rounds; ++round) {
      Rate& rate = mine[static_cast<std::size_t>(round)];
      rate.kind = kind_of_pair(at.job.rank(), round, at.hosts);
      rate.value = std::max(rate.value, pair_rate(at.job, world, context, round,
                                                  bytes_of(at, kPairBytes, kGpuPairBytes)));
    }
    pairs = pairs_of(at, gathered(at.job, std::span<const Rate>(mine)), rounds);
    std::vector<Rate> plain;
    for (const GroupRate& pair : pairs) plain.push_back(pair.rate);
    if (below(plain, kPairFloor).empty()) break;
  }
  add_links(at, fast_links("pairs", pairs, kPairFloor, at.hosts, bandwidth_text),
            at.links_compare(),
            "look at that link: its port, cable, switch, and what else uses it (ethtool, ibstat, "
            "nvidia-smi topo -m)");
}

}  // namespace

void check_links(Inspection& at, Context& context) {
  std::unique_ptr<GpuChannels> gpus;
  if (at.on_gpu()) {
    gpus =
        make_gpu_channels(at.job, context, at.launch.flight_recorder(), at.launch.transfer_faults(),
                          static_cast<int>(at.config.parallel.nccl_max_ctas));
  }
  const auto channel_of = [&](Communicator& group) {
    if (gpus != nullptr) return gpus->channel(group, "preflight");
    return group.size() == 1 ? make_self_communicator() : group.channel("preflight");
  };
  for (const auto& [name, color] : groups_of(at)) {
    const std::unique_ptr<Communicator> group = at.job.split(color);
    const std::unique_ptr<Communicator> channel = channel_of(*group);
    check_group(at, name, color, *group, *channel, context);
  }
  const std::unique_ptr<Communicator> world = channel_of(at.job);
  check_pairs(at, *world, context);
}

}  // namespace trireme
