#include "train/memory_check.h"

#include <sys/resource.h>

#include <algorithm>
#include <new>

#include "base/error.h"
#include "base/human_format.h"
#include "checkpoint/own_shards.h"
#include "device/cpu_info.h"
#include "device/gpu.h"
#include "plan/rank_memory.h"

namespace trireme {

namespace {

/// "; change, what helps most first: ..."
std::string advice_text(const Launch& launch, const MemoryNeed& need, std::int64_t available) {
  if (need.by_options)
    return ". Change --sequence-length, or share the model out: --tensor N on N ranks";
  const std::string advice = memory_advice(need.config, launch.replica().size(), need.device.kind,
                                           available, need.purpose);
  return advice.empty() ? ". Fewer ranks on this host leave more to each"
                        : ". Change, what helps most first: " + advice;
}

/// Its share of the host's, or what a limit of the process (ulimit -v) leaves where that is less.
std::int64_t host_memory_of_rank(const Launch& launch) {
  const std::int64_t share = memory_bytes_available() / launch.local_size();
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return share;
  return std::min(share, static_cast<std::int64_t>(limit.rlim_cur));
}

void require_gpu_memory(const Launch& launch, const MemoryNeed& need) {
  const int gpu = need.device.index;
  gpu::select(gpu);
  const auto free = static_cast<std::int64_t>(gpu::free_bytes());
  if (need.memory.total() <= free) return;
  const gpu::Info info = gpu::info(gpu);
  const auto total = static_cast<std::int64_t>(info.total_bytes);
  // Less than this is what a process takes to use a GPU at all.
  const bool others = total - free > total / 16;
  throw EnvironmentError(
      "GPU {} of {} ({}) has {} of its {} free, and the run needs there {}{}{}", gpu,
      launch.host_name(), info.name, format_bytes(free), format_bytes(total),
      needed_text(need.memory), advice_text(launch, need, free),
      others ? ". Other programs use some of this one (nvidia-smi names them)" : "");
}

void require_host_memory(const Launch& launch, const MemoryNeed& need, std::int64_t of_host) {
  const std::int64_t there = memory_bytes_available();
  if (of_host <= there) return;
  const int ranks = launch.local_size();
  throw EnvironmentError(
      "host {} has {} of memory, and {} would take {}; one needs {}{}", launch.host_name(),
      format_bytes(there), ranks == 1 ? "the run" : fmt::format("the run's {} ranks there", ranks),
      format_bytes(of_host), needed_text(need.memory), advice_text(launch, need, there / ranks));
}

/// Of this rank's memory on its host. A GPU's is taken by now, a host's when it is touched.
std::int64_t host_memory_left(const Runtime& runtime, const RankMemory& needed) {
  const std::int64_t share = memory_bytes_available() / runtime.launch.local_size();
  return runtime.context.on_gpu() ? share : share - needed.total() + needed.saving;
}

}  // namespace

MemoryNeed memory_need(const PreparedRun& prepared, const Launch& launch, Device device,
                       StagePurpose purpose) {
  const MemoryRequest request =
      memory_request(prepared.config, prepared.run, purpose, launch.replica().rank());
  return {prepared.config, device, estimate_memory(prepared.config.model, request), purpose,
          prepared.evaluation_batch > 0};
}

std::int64_t least_memory(const MemoryNeed& need) {
  const RankMemory& memory = need.memory;
  if (need.device.kind == DeviceKind::kCuda || need.config.checkpoint.staging_bytes > 0)
    return memory.total();
  return memory.total() - memory.saving + std::min(memory.saving, 2 * kShardBytesMax);
}

void require_memory(const Launch& launch, const MemoryNeed& need) {
  std::int64_t of_host = least_memory(need);
  launch.host().sum(std::span(&of_host, 1));
  run_together(launch.job(), [&] {
    if (need.device.kind == DeviceKind::kCuda) {
      require_gpu_memory(launch, need);
    } else {
      require_host_memory(launch, need, of_host);
    }
  });
}

MemoryWords words_of(const Launch& launch, const MemoryNeed& need) {
  return {need.device, needed_text(need.memory),
          [&launch, need](std::int64_t available) { return advice_text(launch, need, available); }};
}

void reporting_memory(const Launch& launch, const MemoryWords& words,
                      const std::function<void()>& work) {
  std::string refused;
  try {
    return work();
  } catch (const OutOfMemory& error) {
    refused = error.what();
  } catch (const std::bad_alloc&) {
    refused = "the system refused memory";
  }
  // What was taken is given back by now.
  const bool on_gpu = words.device.kind == DeviceKind::kCuda;
  const std::int64_t there =
      on_gpu ? static_cast<std::int64_t>(gpu::free_bytes()) : host_memory_of_rank(launch);
  throw EnvironmentError("out of memory on host {}: {}. The rank needs {}; there is {} for it{}",
                         launch.host_name(), refused, words.needed, format_bytes(there),
                         words.advice(there));
}

void choose_staging(const Runtime& runtime, RankMemory& memory) {
  if (runtime.config.checkpoint.staging_bytes > 0) return;
  const std::int64_t left = host_memory_left(runtime, memory);
  if (memory.saving <= left / 5 * 4) return;
  const std::int64_t staged = std::min(memory.saving, std::max(2 * kShardBytesMax, left / 2));
  if (!runtime.context.on_gpu()) memory.buffers -= memory.saving - staged;
  memory.saving = staged;
}

}  // namespace trireme
