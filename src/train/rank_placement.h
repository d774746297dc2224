#pragma once
// Where a rank computes.

#include "device/topology.h"
#include "train/prepare.h"
#include "train/runtime.h"

namespace trireme {

/// Which GPU and cores this rank computes on, and keeps its threads there; EnvironmentError where
/// the machine will not do (choose_device). Collective.
Placement bind_to_cores(const RunConfig& config, const Launch& launch);

/// The runtime options that a prepared run means on this rank; EnvironmentError where its device
/// has too little memory. Collective.
RuntimeOptions runtime_options(const PreparedRun& prepared, const Launch& launch,
                               const Placement& placement, StagePurpose purpose);

}  // namespace trireme
