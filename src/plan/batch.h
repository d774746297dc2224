#pragma once

#include <cstdint>

#include "config/run_config.h"
#include "device/device.h"

namespace trireme {

/// global = micro x accumulation x data_ranks.
struct ResolvedBatch {
  std::int64_t global = 1, micro = 1, accumulation = 1, data_ranks = 1;
  friend bool operator==(const ResolvedBatch&, const ResolvedBatch&) = default;
};

/// The same samples in the same order as they go through the layers. On one rank of a CPU a
/// micro-batch whose activations take 512 MiB or more is cut into several, whose gradients add up:
/// they take so much less memory, and with 512 tokens and 2^34 operations a layer or more in a pass
/// a step is about a hundredth longer. Elsewhere nothing is cut: a GPU's products gain from more
/// rows, and other ranks would wait for each pass, or have less of it to hide their sums of
/// gradients behind. Schedule and recomputation have no part in it: they change no bits of a run.
ResolvedBatch batch_of_passes(const RunConfig& config, const ResolvedBatch& batch,
                              std::int64_t world, DeviceKind device);

}  // namespace trireme
