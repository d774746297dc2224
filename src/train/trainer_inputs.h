#pragma once

#include <span>

#include "checkpoint/writer.h"
#include "train/prepare.h"

namespace trireme {

class Loader;
class Reporter;
class Samples;
class Watchdog;
struct ValidationSet;

/// What a run is given besides the runtime.
struct TrainerInputs {
  const PreparedRun& prepared;
  SaveRequest save;                ///< save_request(), more files perhaps
  std::int64_t staging_bytes = 0;  ///< for saves, at most; 0: as much as they need
  Loader* loader = nullptr;
  std::span<const ValidationSet> validation = {};  ///< none: nothing is evaluated
  Samples* samples = nullptr;                      ///< null: none
  Reporter* reporter = nullptr;                    ///< on rank 0
  Watchdog* watchdog = nullptr;                    ///< null: none
};

}  // namespace trireme
