#include <algorithm>
#include <limits>

#include "base/human_format.h"
#include "device/cpu_info.h"
#include "device/free_memory.h"
#include "device/gpu.h"
#include "preflight/inspection.h"
#include "train/memory_check.h"

namespace trireme {

namespace {

/// Of the median: firmware keeps some for itself.
constexpr double kMemoryFloor = 0.95;

struct MemoryState {
  std::int64_t all, free, needed;
};

Finding free_finding(const Inspection& at, const char* name,
                     const std::vector<MemoryState>& of_rank) {
  Finding finding{name, FindingStatus::kOk, {}, "", "", ""};
  std::int64_t least = std::numeric_limits<std::int64_t>::max(), most_needed = 0;
  std::string found;
  for (std::size_t rank = 0; rank < of_rank.size(); ++rank) {
    const MemoryState& memory = of_rank[rank];
    if (memory.free == 0 && memory.needed == 0) continue;
    least = std::min(least, memory.free);
    most_needed = std::max(most_needed, memory.needed);
    if (memory.free >= memory.needed) continue;
    finding.status = FindingStatus::kOdd;
    finding.ranks.push_back(static_cast<int>(rank));
  }
  finding.found = format_bytes(least) + " at least";
  if (most_needed > 0) finding.found += fmt::format(", {} needed", format_bytes(most_needed));
  if (finding.status == FindingStatus::kOk) return finding;
  finding.found = fmt::format("{}: {} free", at.hosts.text(finding.ranks), format_bytes(least));
  finding.expected = format_bytes(most_needed) + " for the run";
  finding.advice = "end what else runs there, or let a rank need less (train plan says how)";
  return finding;
}

}  // namespace

void check_memory(Inspection& at) {
  std::int64_t needed = 0;
  if (at.prepared != nullptr) {
    needed = least_memory(
        memory_need(*at.prepared, at.launch, at.placement.device, StagePurpose::kTraining));
  }
  if (at.on_gpu()) {
    gpu::select(at.placement.device.index);
    const std::vector<MemoryState> of_rank =
        gathered(at.job, MemoryState{0, static_cast<std::int64_t>(gpu::free_bytes()), needed});
    at.add(free_finding(at, "GPU memory", of_rank));
    needed = 0;
  }
  at.launch.host().sum(std::span(&needed, 1));
  const std::int64_t mine = at.first_of_host ? 1 : 0;
  const std::vector<MemoryState> of_host = gathered(
      at.job,
      MemoryState{mine * memory_bytes_available(), mine * memory_bytes_free(), mine * needed});
  if (at.job.rank() != 0) return;
  std::vector<Rate> all;
  for (int rank = 0; rank < at.job.size(); ++rank) {
    const MemoryState& memory = of_host[static_cast<std::size_t>(rank)];
    all.push_back({static_cast<double>(memory.all), 0});
    if (memory.all == 0) continue;
    HostMemory& host = at.report.hosts[static_cast<std::size_t>(at.hosts.of(rank))];
    host.memory_bytes = memory.all;
    host.free_memory_bytes = memory.free;
  }
  Finding size = fast_everywhere("memory", all, kMemoryFloor, at.hosts, [](double bytes) {
    return format_bytes(static_cast<std::int64_t>(bytes));
  });
  if (size.failed()) size.status = FindingStatus::kOdd;
  size.advice = "a module may have failed, or a limit (cgroup) is lower there";
  at.add(std::move(size));
  at.add(free_finding(at, "free memory", of_host));
}

}  // namespace trireme
