#include "model/flops.h"

#include "model/param_table.h"

namespace trireme {

ParameterCount count_parameters(const ModelConfig& config) {
  const ModelParams params = declare_params(config);
  const ChunkParams& whole = params.chunks.front();
  ParameterCount count;
  for (const ParamMeta& meta : params.metas) {
    if (meta.shares != kNoParam) continue;
    count.total += meta.shape.count();
    const auto index = static_cast<ParamIndex>(&meta - params.metas.data());
    const bool looked_up = index == whole.embedding || index == whole.position_embedding;
    if (meta.shape.rank() == 2 && (!looked_up || index == whole.head))
      count.multiplying += meta.shape.count();
  }
  count.active = count.total;
  return count;
}

std::int64_t model_flops_per_token(const ModelConfig& config, std::int64_t sequence_length) {
  std::int64_t flops = 6 * count_parameters(config).multiplying;
  for (const LayerConfig& layer : config.layers)
    flops += 6 * layer.attention.q_size() * layer.attention.seen(sequence_length);
  return flops;
}

}  // namespace trireme
