#include "train/rank_placement.h"

#include <algorithm>

#include "base/human_format.h"
#include "base/log.h"
#include "device/gpu.h"
#include "device/openmp_setup.h"
#include "plan/memory.h"
#include "train/device_choice.h"
#include "train/memory_check.h"

namespace trireme {

Placement bind_to_cores(const RunConfig& config, Launch& launch) {
  std::vector<std::vector<Core>> cores_of_rank;
  for (const std::string& text : launch.host().all_gather_text(text_of(usable_cores()))) {
    cores_of_rank.push_back(parse_cores(text));
  }
  const Device device = choose_device(config.run.device, launch);
  std::vector<std::vector<int>> near_of_rank;
  if (device.kind == DeviceKind::kCuda) {
    const std::vector<int> near = cpus_near(gpu::info(device.index).pci_bus_id);
    const std::string mine = near.empty() ? "" : text_of(std::vector<Core>{{near}});
    for (const std::string& text : launch.host().all_gather_text(mine))
      near_of_rank.push_back(text.empty() ? std::vector<int>() : parse_cores(text).front().cpus);
  }
  PlacementRequest request;
  request.near_of_rank = near_of_rank;
  request.local_rank = launch.local_rank();
  request.threads_per_rank = config.run.threads_per_rank;
  request.cpu_count_max = usable_cpu_count();
  Placement placement = place_rank(cores_of_rank, request);
  placement.device = device;
  const bool in_turns = bind_this_thread(placement) && placement.in_turns;
  const std::int64_t usable =
      std::min<std::int64_t>(count_cpus(cores_of_rank), request.cpu_count_max);
  if (device.kind == DeviceKind::kCpu && launch.local_size() > usable) {
    log_warning(
        "{} share {} of {}: each waits for the others and steps take longer than on fewer ranks",
        counted(launch.local_size(), "rank"), counted(usable, "core"), launch.host_name());
  }
  if (in_turns || launch.local_size() <= usable) launch.wait_awake();
  // A core of others' would take it for work of theirs.
  if (in_turns) launch.keep_communication_on(placement.cpus);
  if (placement.sharers > 1 && placement.threads > 1 && openmp_binds_threads()) {
    log_warning(
        "OMP_PROC_BIND (or OMP_PLACES) binds the threads of {} ranks of this host to the same "
        "cores: unset it, or have the launcher give each rank cores of its own (mpirun --bind-to)",
        placement.sharers);
  }
  return placement;
}

RuntimeOptions runtime_options(const PreparedRun& prepared, const Launch& launch,
                               const Placement& placement, StagePurpose purpose) {
  RuntimeOptions options;
  options.device = placement.device;
  options.purpose = purpose;
  require_memory(launch, memory_need(prepared, launch, options.device, purpose));
  if (prepared.run.fp8)
    require_fp8(launch, options.device, prepared.config.model, *prepared.run.fp8);
  const MemoryRequest request =
      memory_request(prepared.config, prepared.run, purpose, launch.replica().rank());
  options.attention = &ready_attention(launch, options.device, *request.attention,
                                       attention_layout(prepared.config.model, request), purpose);
  options.threads = placement.threads;
  return options;
}

}  // namespace trireme
