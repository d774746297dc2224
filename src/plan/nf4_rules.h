#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "config/problem.h"
#include "config/run_config.h"

namespace trireme {

/// With lora.base "nf4" ranks share the base in whole blocks (kNf4Block): those of the tensor axis
/// by cut_within_block, those of ZeRO's stage 3, `shards`, in rows that are blocks, or evenly in a
/// few rows together that are. Faults give the tensor and its first cut within a block.
/// `tensor_fits`: extents of the tensor axis that shard the model.
void check_nf4_cuts(const RunConfig& config, std::int64_t shards,
                    const std::function<bool(std::int64_t)>& tensor_fits,
                    std::vector<Problem>& problems);

}  // namespace trireme
