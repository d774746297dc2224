#pragma once

#include "plan/resolve.h"
#include "plan/step_time.h"

namespace trireme {

/// A step of a run that resolves, in the mean over its steps: they differ where batch.global is a
/// ramp.
PredictedStep predict_mean_step(const RunConfig& config, const ResolvedRun& run,
                                const Cluster& cluster);

}  // namespace trireme
