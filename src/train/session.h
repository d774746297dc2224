#pragma once

#include "device/topology.h"
#include "train/evaluator.h"
#include "train/launch_guard.h"
#include "train/memory_check.h"
#include "train/prepare.h"
#include "train/run_end.h"
#include "train/runtime.h"

namespace trireme {

/// Which GPU and cores this rank computes on, and keeps its threads there; EnvironmentError where
/// the machine will not do (choose_device). Collective.
Placement settle_on_cores(const RunConfig& config, const Launch& launch);

/// What a rank needs of a prepared run's memory.
MemoryNeed memory_need(const PreparedRun& prepared, const Launch& launch, Device device,
                       StagePurpose purpose);

/// The runtime options that a prepared run means on this rank; EnvironmentError where its device
/// has too little memory. Collective.
RuntimeOptions runtime_options(const PreparedRun& prepared, const Launch& launch,
                               const Placement& placement, StagePurpose purpose);

/// How the samples of a batch fall to this rank.
BatchShape batch_shape(const PreparedRun& prepared, const Runtime& runtime);

/// The validation sets of a run; ConfigError where the config names no validation data. Collective.
std::vector<ValidationSet> open_validation(const PreparedRun& prepared, const Runtime& runtime);

/// Trains a prepared run from its newest checkpoint, or from its initial weights, to its end or a
/// reason to stop; the whole life of `train CONFIG` behind the config. `guard`, where there is one,
/// rests while the session's watchdog lives. Collective.
RunEnd train_session(Launch& launch, const PreparedRun& prepared, LaunchGuard* guard = nullptr);

}  // namespace trireme
