#pragma once

#include <string>
#include <vector>

#include "model/param_table.h"

namespace trireme {

/// The blocks that a whole model is seen as: "embedding", "layer 0", ..., "head", which is the
/// final norm and, where it is not tied, the head.
std::vector<std::string> block_names(const ModelConfig& config);
/// Which of them each block of these parameters is (ParamMeta::block).
std::vector<int> places_of_blocks(const ModelParams& params, const ModelConfig& config);

}  // namespace trireme
