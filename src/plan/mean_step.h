#pragma once

#include "plan/resolve.h"
#include "plan/step_time.h"

namespace trireme {

/// The mean over the steps of a run that resolves, which differ where batch.global is a ramp;
/// `largest`: what is predicted of a step of the largest batch.
PredictedStep predict_mean_step(const PredictedStep& largest, const RunConfig& config,
                                const ResolvedRun& run, const Cluster& cluster);

}  // namespace trireme
