#pragma once

#include <vector>

#include "config/model_config.h"
#include "device/context.h"
#include "tensor/buffer.h"

namespace trireme {

/// cos_sin [positions, R] f32 for kernels/rope, R dims of a head that rotate: R/2 cosines, then as
/// many sines, both times the attention factor of yarn, of q also times what RopeConfig::query_beta
/// gives. Angles are rounded to f32 where transformers (modeling_rope_utils) rounds them.
struct RopeTable {
  ConstTensorView q, k;  ///< one and the same where queries are not scaled
};

/// Of all layers of a model, in the context's memory; those of one RopeConfig share a table.
class RopeTables {
 public:
  RopeTables(Context& context, const ModelConfig& config, std::int64_t positions);
  /// Nothing where the layer has no RoPE.
  [[nodiscard]] RopeTable of_layer(std::int64_t layer) const;
  static std::int64_t bytes_of(const ModelConfig& config, std::int64_t positions);

 private:
  const ModelConfig& config_;
  struct Table {
    Buffer k, q;  ///< q: where queries are scaled
  };
  std::vector<Table> tables_;  // of each layer whose table no layer before it has
};

}  // namespace trireme
