#pragma once

#include "base/trace.h"
#include "pipeline/plan.h"
#include "pipeline/stage_program.h"

namespace trireme {

/// Runs the actions of one rank in the order of the plan, a span of the trace for each.
void execute(const Plan& plan, int rank, StageProgram& stage, Trace& trace);

}  // namespace trireme
