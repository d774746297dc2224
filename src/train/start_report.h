#pragma once
// What a run says where it starts.

#include "device/topology.h"
#include "plan/memory.h"
#include "telemetry/metrics_lines.h"
#include "train/prepare.h"
#include "train/runtime.h"

namespace trireme {

/// The model, the batch, the memory of each rank and where it computes. Collective.
void print_start(const PreparedRun& prepared, const Runtime& runtime, const Placement& placement,
                 const RankMemory& memory);

StartLine start_line(const PreparedRun& prepared, const Runtime& runtime);

}  // namespace trireme
