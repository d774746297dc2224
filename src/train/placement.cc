#include "train/placement.h"

#include "device/cpu_info.h"

namespace trireme {

Placement place_this_rank(const Launch& launch, std::int64_t threads_per_rank) {
  std::vector<std::vector<Core>> cores_of_rank;
  for (const std::string& text : launch.host().all_gather_text(text_of(usable_cores()))) {
    cores_of_rank.push_back(parse_cores(text));
  }
  std::int64_t mask_cpus = 0;
  for (const Core& core : cores_of_rank[static_cast<std::size_t>(launch.local_rank())]) {
    mask_cpus += static_cast<std::int64_t>(core.cpus.size());
  }
  PlacementRequest request;
  request.local_rank = launch.local_rank();
  request.threads_per_rank = threads_per_rank;
  // Fewer than the mask has: a quota, which the ranks of the host share.
  if (usable_cpu_count() < mask_cpus) request.cpu_count_max = usable_cpu_count();
  const Placement placement = place_rank(cores_of_rank, request);
  bind_this_thread(placement);
  return placement;
}

std::vector<std::string> placement_table(const Launch& launch, const Placement& placement) {
  const Communicator& world = launch.world();
  std::vector<std::string> lines = launch.world().all_gather_text(
      fmt::format("host {}, {}", launch.host_name(), placement.text()));
  for (int rank = 0; rank < world.size(); ++rank) {
    std::string& line = lines[static_cast<std::size_t>(rank)];
    line = fmt::format("rank {}: {}", rank, line);
  }
  return lines;
}

}  // namespace trireme
