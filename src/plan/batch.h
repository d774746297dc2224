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

/// The same samples in the same order as they go through the layers. On a CPU a micro-batch is
/// split into several, whose gradients add up, where its activations take 256 MiB or more, and
/// those of all data ranks together 512 MiB: they take so much less memory, and with 512 tokens and
/// 2^34 operations a layer or more in each, a step is about a hundredth longer. Elsewhere nothing
/// is split: a GPU's products gain from more rows, and ranks of other axes, or with ZeRO 2 and 3,
/// would wait for each; nor where moe.scope is a whole step. Schedule and recomputation have no
/// part in it: they change no bits.
ResolvedBatch batch_of_passes(const RunConfig& config, const ResolvedBatch& batch,
                              std::int64_t world, DeviceKind device);

}  // namespace trireme
