#include "model/flops.h"

#include "config/adapters.h"

namespace trireme {

ParameterCount count_parameters(const ModelConfig& config) {
  return count_parameters(config, declare_params(config));
}

ParameterCount count_parameters(const ModelConfig& config, const ModelParams& params) {
  const ChunkParams& whole = params.chunks.front();
  const int first_layer = params.block_of(whole.blocks.front().attention.in.weight.first);
  const std::int64_t untrained = params.first_trained_layer;  // layers
  ParameterCount count;
  std::vector<std::int64_t> of_experts(config.layers.size(), 0), biases = of_experts,
                                                                 frozen = of_experts;
  for (const ParamMeta& meta : params.metas) {
    if (meta.shares != kNoParam) continue;
    const std::int64_t elements = meta.shape.count();
    count.total += elements;
    if (meta.trainable) count.trained += elements;
    if (meta.view == MeshView::kExpert) {
      const auto layer = static_cast<std::size_t>(meta.block - first_layer);
      of_experts.at(layer) += elements;
      if (meta.shape.rank() == 1) biases.at(layer) += elements;
      if (meta.shape.rank() == 2 && !meta.trainable) frozen.at(layer) += elements;
      continue;
    }
    count.active += elements;
    const auto index = static_cast<ParamIndex>(&meta - params.metas.data());
    const bool looked_up = index == whole.embedding || index == whole.position_embedding;
    if (meta.shape.rank() != 2 || (looked_up && index != whole.head)) continue;
    count.multiplying += elements;
    if (meta.trainable) continue;
    count.frozen_multiplying += elements;
    const bool of_head = index == whole.head;
    if (of_head ? untrained == config.layer_count() : meta.block - first_layer < untrained)
      count.forward_multiplying += elements;
  }
  for (std::size_t i = 0; i < of_experts.size(); ++i) {
    const auto& experts = config.layers[i].experts;
    if (!experts) continue;
    const std::int64_t one = of_experts[i] / experts->count;
    count.active += one * experts->chosen;
    const std::int64_t chosen = (one - biases[i] / experts->count) * experts->chosen;
    count.multiplying += chosen;
    const std::int64_t stands_still = frozen[i] / experts->count * experts->chosen;
    count.frozen_multiplying += stands_still;
    if (static_cast<std::int64_t>(i) < untrained) count.forward_multiplying += stands_still;
  }
  return count;
}

std::int64_t model_flops_per_token(const ModelConfig& config, std::int64_t sequence_length) {
  const ParameterCount count = count_parameters(config);
  std::int64_t flops =
      6 * count.multiplying - 2 * (count.frozen_multiplying + count.forward_multiplying);
  for (std::int64_t i = 0; i < config.layer_count(); ++i) {
    const AttentionConfig& attention = config.layer(i).attention;
    const std::int64_t passes = i < first_trained_layer(config) ? 2 : 6;
    flops += passes * attention.pair_size() * attention.seen(sequence_length);
  }
  return flops;
}

}  // namespace trireme
