#pragma once

#include <vector>

#include "comm/communicator.h"
#include "config/model_config.h"
#include "optim/block_meter.h"
#include "telemetry/metrics_lines.h"

namespace trireme {

/// The norms of a model's blocks from what each rank has measured, on every rank the same bits; a
/// block without trained parameters is left out. Collective; `mine` is changed.
std::vector<BlockNorms> norms_of_blocks(Communicator& replica, std::vector<BlockSquares>& mine,
                                        const ModelConfig& model);

}  // namespace trireme
