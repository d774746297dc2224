#include "device/topology.h"

#include <fmt/format.h>
#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "base/unique_handle.h"

namespace trireme {

namespace {

struct TopologyTraits {
  using Raw = hwloc_topology_t;
  static Raw null() noexcept { return nullptr; }
  static void destroy(Raw raw) noexcept { hwloc_topology_destroy(raw); }
};
using Topology = UniqueHandle<TopologyTraits>;

// More than any Linux has: a machine beyond 1024 CPUs does not fit a plain cpu_set_t.
constexpr int kCpusMax = 16384;

class CpuMask {
 public:
  CpuMask() : set_(CPU_ALLOC(kCpusMax)) { CPU_ZERO_S(bytes(), set_); }
  ~CpuMask() { CPU_FREE(set_); }
  CpuMask(const CpuMask&) = delete;
  CpuMask& operator=(const CpuMask&) = delete;
  [[nodiscard]] static std::size_t bytes() { return CPU_ALLOC_SIZE(kCpusMax); }
  [[nodiscard]] cpu_set_t* get() const { return set_; }
  [[nodiscard]] bool has(int cpu) const { return CPU_ISSET_S(cpu, bytes(), set_) != 0; }
  void add(int cpu) { CPU_SET_S(cpu, bytes(), set_); }

 private:
  cpu_set_t* set_;
};

/// Cores as hwloc knows them; empty where it cannot tell.
std::vector<Core> cores_of_machine() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return {};
  const Topology topology(raw);
  if (hwloc_topology_load(raw) != 0) return {};
  std::vector<Core> cores;
  for (hwloc_obj_t core = nullptr;
       (core = hwloc_get_next_obj_by_type(raw, HWLOC_OBJ_CORE, core)) != nullptr;) {
    Core& made = cores.emplace_back();
    for (int cpu = hwloc_bitmap_first(core->cpuset); cpu >= 0;
         cpu = hwloc_bitmap_next(core->cpuset, cpu)) {
      made.cpus.push_back(cpu);
    }
  }
  return cores;
}

bool user_binds_threads() {
  for (const char* name : {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0' && std::string(value) != "false") return true;
  }
  return false;
}

std::vector<int> all_cpus(std::span<const Core> cores) {
  std::vector<int> cpus;
  for (const Core& core : cores) cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

}  // namespace

std::vector<Core> usable_cores() {
  const CpuMask mask;
  if (::sched_getaffinity(0, CpuMask::bytes(), mask.get()) != 0) return {Core{{0}}};
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
  const std::vector<Core>& cores = cores_of_rank[rank];
  const auto same = [&](const std::vector<Core>& other) { return other == cores; };
  const auto sharers =
      static_cast<std::size_t>(std::count_if(cores_of_rank.begin(), cores_of_rank.end(), same));
  const auto place = static_cast<std::size_t>(
      std::count_if(cores_of_rank.begin(), cores_of_rank.begin() + request.local_rank, same));
  const std::size_t share = cores.size() / sharers;
  // A launcher that bound the ranks left each its own CPUs: then they are no quota of all together.
  const bool limited = request.cpu_count_max < static_cast<int>(all_cpus(cores).size());
  const int quota =
      limited ? request.cpu_count_max / static_cast<int>(cores_of_rank.size()) : kCpusMax;
  const int fair = std::max(1, std::min(static_cast<int>(share), quota));

  Placement placement;
  placement.threads =
      request.threads_per_rank > 0 ? static_cast<int>(request.threads_per_rank) : fair;
  const bool whole = share >= 1 && quota >= static_cast<int>(share);
  placement.bind = cores_of_rank.size() > 1 && sharers == cores_of_rank.size() && whole &&
                   placement.threads == static_cast<int>(share);
  placement.cores = placement.bind ? static_cast<int>(share) : fair;
  placement.cpus =
      all_cpus(placement.bind ? std::span(cores).subspan(place * share, share) : std::span(cores));
  return placement;
}

void bind_this_thread(const Placement& placement) {
  if (!placement.bind || user_binds_threads()) return;
  CpuMask mask;
  for (const int cpu : placement.cpus) mask.add(cpu);
  ::sched_setaffinity(0, CpuMask::bytes(), mask.get());
}

}  // namespace trireme
