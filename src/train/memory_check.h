#pragma once
// Memory that is not there: what was needed, by item, what there is, and what to change.

#include <cstdint>
#include <functional>

#include "comm/launch.h"
#include "config/run_config.h"
#include "device/device.h"
#include "plan/memory.h"
#include "train/prepare.h"
#include "train/runtime.h"

namespace trireme {

/// What a rank is to allocate.
struct MemoryNeed {
  const RunConfig& config;
  Device device;
  RankMemory memory;  ///< of this rank
  StagePurpose purpose = StagePurpose::kTraining;
  bool by_options = false;  ///< made of evaluate's options, without a config that could be changed
};

/// Of what a prepared run takes on this rank.
MemoryNeed memory_need(const PreparedRun& prepared, const Launch& launch, Device device,
                       StagePurpose purpose);

/// Without the part of what saving takes that a run does without where it must
/// (checkpoint.staging_bytes).
std::int64_t least_memory(const MemoryNeed& need);

/// What is reported where memory is refused.
struct MemoryWords {
  Device device;
  std::string needed;  ///< "weights 1.2 GiB, ...: 8.4 GiB together"
  /// ". Change ...", where so many bytes are there.
  std::function<std::string(std::int64_t available)> advice;
};
MemoryWords words_of(const Launch& launch, const MemoryNeed& need);

/// Before anything is allocated: every rank throws EnvironmentError where a GPU has less memory
/// free than its rank needs, or a host than its ranks. Selects the thread's GPU. Collective.
void require_memory(const Launch& launch, const MemoryNeed& need);

/// Runs `work`; memory that is refused meanwhile, by the system, a GPU or operator new, becomes an
/// EnvironmentError. It is of this rank alone, unless `work` made it a SharedError.
void reporting_memory(const Launch& launch, const MemoryWords& words,
                      const std::function<void()>& work);

/// Decides how much memory stages saves, if left open: all they need, or a part of what is left.
void choose_staging(const Runtime& runtime, RankMemory& memory);

}  // namespace trireme
