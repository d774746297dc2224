#pragma once

#include <vector>

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

/// Of all layers of a model; those of one RopeConfig share a table.
class RopeTables {
 public:
  RopeTables(Context& context, const ModelConfig& config, std::int64_t positions);
  /// Nothing where the layer has no RoPE.
  [[nodiscard]] ConstTensorView of_layer(std::int64_t layer) const;
  static std::int64_t bytes_of(const ModelConfig& config, std::int64_t positions);

 private:
  const ModelConfig& config_;
  std::vector<Buffer> tables_;  // of each layer whose table no layer before it has
};

}  // namespace trireme
