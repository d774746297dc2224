#pragma once

#include <filesystem>

#include "checkpoint/manifest.h"
#include "comm/communicator.h"
#include "config/run_config.h"
#include "store/state.h"

namespace trireme {

/// Moments that a checkpoint has in another type than a run (optimizer.state): reads them, rounds
/// them to codes or widens codes, and takes them out of `state`, whose tensors stand contiguous in
/// host memory. Nothing where the types agree. With the magnitudes that all blocks of the global
/// tensors have, on any mesh. Takes memory for this rank's moments in the other type. Collective.
/// Throws what load_state does.
void convert_moments(State& state, const std::filesystem::path& folder, const Manifest& manifest,
                     MomentType wanted, Communicator& replica);

}  // namespace trireme
