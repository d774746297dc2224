#pragma once

#include "config/model_config.h"
#include "device/context.h"
#include "tensor/buffer.h"

namespace trireme {

/// cos_sin [positions, head_dim] f32 for kernels/rope: head_dim/2 cosines, then as many sines, both
/// times the attention factor of yarn. Angles are rounded to f32 where transformers
/// (modeling_rope_utils) rounds them.
/// In the context's memory.
Buffer make_rope_table(Context& context, const RopeConfig& rope, std::int64_t head_dim,
                       std::int64_t positions);

}  // namespace trireme
