#pragma once

#include <cstdint>

#include "config/model_config.h"
#include "model/stage.h"

namespace trireme {

/// The most that an op of such a stage asks of Context::scratch on a GPU, our own attention's too;
/// a library's attention says itself what it needs. `of_rank`: with this rank's heads and ffn.
std::int64_t gpu_scratch_bytes(const ModelConfig& of_rank, const StageShape& shape);

}  // namespace trireme
