#pragma once
// Where a rank computes.

#include "device/topology.h"
#include "train/prepare.h"
#include "train/runtime.h"

namespace trireme {

/// Which GPU and cores this rank computes on, bound; EnvironmentError as choose_device. Collective.
Placement bind_to_cores(const RunConfig& config, Launch& launch);

/// A prepared run's runtime options here; EnvironmentError where memory is too little. Collective.
RuntimeOptions runtime_options(const PreparedRun& prepared, const Launch& launch,
                               const Placement& placement, StagePurpose purpose);

}  // namespace trireme
