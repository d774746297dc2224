#include "device/topology.h"

#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "base/cpu_mask.h"
#include "base/error.h"
#include "base/unique_handle.h"
#include "device/openmp_setup.h"

namespace trireme {

namespace {

struct TopologyTraits {
  using Raw = hwloc_topology_t;
  static Raw null() noexcept { return nullptr; }
  static void destroy(Raw raw) noexcept { hwloc_topology_destroy(raw); }
};
using Topology = UniqueHandle<TopologyTraits>;

/// The machine, with its PCI devices or without; null where hwloc cannot tell. Never more: hwloc's
/// plugins would start CUDA and OpenCL to look for their devices.
Topology load_topology(hwloc_type_filter_e pci_devices) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return {};
  Topology topology(raw);
  hwloc_topology_set_type_filter(raw, HWLOC_OBJ_PCI_DEVICE, pci_devices);
  if (hwloc_topology_load(raw) != 0) return {};
  return topology;
}

std::vector<int> cpus_of(hwloc_const_cpuset_t set) {
  std::vector<int> cpus;
  for (int cpu = hwloc_bitmap_first(set); cpu >= 0; cpu = hwloc_bitmap_next(set, cpu))
    cpus.push_back(cpu);
  return cpus;
}

/// Cores as hwloc knows them; empty where it cannot tell.
std::vector<Core> cores_of_machine() {
  const Topology topology = load_topology(HWLOC_TYPE_FILTER_KEEP_NONE);
  if (!topology) return {};
  std::vector<Core> cores;
  for (hwloc_obj_t core = nullptr;
       (core = hwloc_get_next_obj_by_type(topology.get(), HWLOC_OBJ_CORE, core)) != nullptr;) {
    cores.push_back({cpus_of(core->cpuset)});
  }
  return cores;
}

std::vector<int> all_cpus(std::span<const Core> cores) {
  std::vector<int> cpus;
  for (const Core& core : cores) cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

/// Of each rank those of its cores that are near its GPU; empty where that is not known of all.
std::vector<std::vector<Core>> cores_near_gpus(std::span<const std::vector<Core>> cores_of_rank,
                                               std::span<const std::vector<int>> near_of_rank) {
  if (near_of_rank.size() != cores_of_rank.size()) return {};
  std::vector<std::vector<Core>> pools(cores_of_rank.begin(), cores_of_rank.end());
  for (std::size_t rank = 0; rank < pools.size(); ++rank) {
    const std::vector<int>& near = near_of_rank[rank];
    std::erase_if(pools[rank], [&](const Core& core) {
      return !std::binary_search(near.begin(), near.end(), core.cpus.front());
    });
    if (pools[rank].empty()) return {};
  }
  return pools;
}

/// Which of a rank's cores are its own: an even part of those that it shares with others.
struct Share {
  std::size_t sharers, place, cores;
};
Share share_of(std::span<const std::vector<Core>> pools, std::size_t rank) {
  const auto same = [&](const std::vector<Core>& other) { return other == pools[rank]; };
  const auto end = pools.begin() + static_cast<std::ptrdiff_t>(rank);
  const auto sharers = static_cast<std::size_t>(std::count_if(pools.begin(), pools.end(), same));
  return {sharers, static_cast<std::size_t>(std::count_if(pools.begin(), end, same)),
          pools[rank].size() / sharers};
}

}  // namespace

std::vector<int> cpus_near(const std::string& pci_bus_id) {
  const Topology topology = load_topology(HWLOC_TYPE_FILTER_KEEP_ALL);
  if (!topology) return {};
  const hwloc_obj_t gpu = hwloc_get_pcidev_by_busidstring(topology.get(), pci_bus_id.c_str());
  if (gpu == nullptr) return {};
  const hwloc_obj_t side = hwloc_get_non_io_ancestor_obj(topology.get(), gpu);
  const hwloc_obj_t machine = hwloc_get_root_obj(topology.get());
  if (hwloc_bitmap_isequal(side->cpuset, machine->cpuset) != 0) return {};
  return cpus_of(side->cpuset);
}

std::vector<Core> usable_cores() {
  CpuMask mask;
  if (!mask.read()) return {Core{{0}}};
  std::vector<Core> cores = cores_of_machine();
  for (Core& core : cores)
    std::erase_if(core.cpus, [&](int cpu) { return cpu >= kCpusMax || !mask.has(cpu); });
  std::erase_if(cores, [](const Core& core) { return core.cpus.empty(); });
  if (!cores.empty()) return cores;
  for (int cpu = 0; cpu < kCpusMax; ++cpu) {
    if (mask.has(cpu)) cores.push_back({{cpu}});
  }
  return cores;
}

std::string text_of(std::span<const Core> cores) {
  std::string text;
  for (const Core& core : cores) {
    text += fmt::format("{}{}", text.empty() ? "" : ";", fmt::join(core.cpus, ","));
  }
  return text;
}

std::int64_t count_cpus(std::span<const std::vector<Core>> cores_of_rank) {
  std::set<int> cpus;
  for (const std::vector<Core>& cores : cores_of_rank)
    for (const Core& core : cores) cpus.insert(core.cpus.begin(), core.cpus.end());
  return std::ssize(cpus);
}

std::vector<Core> parse_cores(const std::string& text) {
  std::vector<Core> cores(1);
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    int cpu = -1;
    const auto [next, fault] = std::from_chars(at, end, cpu);
    if (fault != std::errc() || cpu < 0) throw DataError("'{}' names no cores", text);
    cores.back().cpus.push_back(cpu);
    if (next == end) return cores;
    if (*next == ';') cores.emplace_back();
    if (*next != ';' && *next != ',') throw DataError("'{}' names no cores", text);
    at = next + 1;
  }
}

std::string range_text(std::span<const int> numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text +=
        last == i ? fmt::format("{}", numbers[i]) : fmt::format("{}-{}", numbers[i], numbers[last]);
    i = last + 1;
  }
  return text;
}

std::string Placement::text() const {
  return fmt::format("CPU{} {}, {} thread{}", cpus.size() == 1 ? "" : "s", range_text(cpus),
                     threads, threads == 1 ? "" : "s");
}

Placement place_rank(std::span<const std::vector<Core>> cores_of_rank,
                     const PlacementRequest& request) {
  const auto rank = static_cast<std::size_t>(request.local_rank);
  expect(rank < cores_of_rank.size() && !cores_of_rank[rank].empty(), "rank {} of {} on this host",
         rank, cores_of_rank.size());
  const std::size_t sharers = share_of(cores_of_rank, rank).sharers;
  const bool launcher_binds = sharers != cores_of_rank.size();
  const std::vector<std::vector<Core>> near =
      launcher_binds ? std::vector<std::vector<Core>>()
                     : cores_near_gpus(cores_of_rank, request.near_of_rank);
  const auto pools = near.empty() ? cores_of_rank : std::span<const std::vector<Core>>(near);
  const std::vector<Core>& cores = pools[rank];
  const Share mine = share_of(pools, rank);
  std::size_t share = mine.cores;
  for (std::size_t other = 0; !near.empty() && other < pools.size(); ++other)
    share = std::min(share, share_of(pools, other).cores);
  // A launcher that bound the ranks left each its own CPUs: then they are no quota of all together.
  const bool limited =
      request.cpu_count_max < static_cast<int>(all_cpus(cores_of_rank[rank]).size());
  const int quota =
      limited ? request.cpu_count_max / static_cast<int>(cores_of_rank.size()) : kCpusMax;
  const int fair = std::max(1, std::min(static_cast<int>(share), quota));

  Placement placement;
  placement.sharers = static_cast<int>(sharers);
  placement.threads =
      request.threads_per_rank > 0 ? static_cast<int>(request.threads_per_rank) : fair;
  const bool whole = share >= 1 && quota >= static_cast<int>(share);
  const bool apart = (!near.empty() || cores_of_rank.size() > 1) && !launcher_binds && whole &&
                     placement.threads == static_cast<int>(share);
  placement.in_turns = near.empty() && !launcher_binds && !limited && share == 0 &&
                       sharers % cores.size() == 0 && placement.threads == 1;
  placement.bind = apart || placement.in_turns || !near.empty();
  placement.cores = apart ? static_cast<int>(share) : fair;
  std::span<const Core> kept(cores);
  if (apart) kept = kept.subspan(mine.place * share, share);
  if (placement.in_turns) kept = kept.subspan(mine.place % cores.size(), 1);
  placement.cpus = all_cpus(kept);
  return placement;
}

bool bind_this_thread(const Placement& placement) {
  if (!placement.bind || openmp_binds_threads()) return false;
  CpuMask mask;
  for (const int cpu : placement.cpus) mask.add(cpu);
  return mask.apply();
}

}  // namespace trireme
