#pragma once
// `train preflight`: what a run would find on all of its ranks, without starting one. Checks in the
// order in which a fault explains those behind it; each says what was found, what the others have,
// and what to do (findings.h). Nothing is left behind, and no folder made.

#include <optional>

#include "comm/launch.h"
#include "config/parse.h"
#include "preflight/rank_facts.h"
#include "preflight/report.h"
#include "train/prepare.h"

namespace trireme {

struct PreflightRequest {
  const ConfigInput* input = nullptr;     ///< null: no config
  const PreparedRun* prepared = nullptr;  ///< what it comes to; null likewise
  MachineSources sources = {};
};

/// Whether all ranks run one program: nothing else is worth asking where they do not. Collective.
PreflightReport check_program(const Launch& launch);

/// The rest. Collective; SharedError (75) once a signal asks to stop.
PreflightReport check_ranks(Launch& launch, const PreflightRequest& request);

}  // namespace trireme
