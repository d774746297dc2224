#pragma once

#include "comm/launch.h"
#include "guard/launch_guard.h"
#include "train/prepare.h"
#include "train/run_end.h"

namespace trireme {

/// Trains a prepared run from its newest checkpoint, or from its initial weights, to its end or a
/// reason to stop; the whole life of `train CONFIG` behind the config. `guard`, where there is one,
/// rests while the session's watchdog lives. Collective.
RunEnd train_session(Launch& launch, const PreparedRun& prepared, LaunchGuard* guard = nullptr);

}  // namespace trireme
