#include "model/gpu_scratch_bytes.h"

#include <algorithm>

#include "kernels/attention/attention_gpu_table.h"
#include "kernels/common/gpu_scratch.h"
#include "tensor/quantized_view.h"

namespace trireme {

namespace {

/// Sums over tokens of a layer's backward: biases and the weights of norms.
std::int64_t sum_floats(const LayerConfig& layer, std::int64_t hidden, std::int64_t tokens) {
  using namespace gpu_scratch;
  std::int64_t most = norm_backward_floats(tokens, hidden);
  if (layer.attention.qk_norm == QkNorm::kHeads)
    most = std::max(most, rope_backward_floats(tokens, layer.attention.head_dim));
  if (layer.attention.qk_norm == QkNorm::kProjection)
    most = std::max({most, column_sum_floats(tokens, layer.attention.q_size()),
                     column_sum_floats(tokens, layer.attention.k_size())});
  if (const auto& latent = layer.attention.latent)
    most = std::max({most, column_sum_floats(tokens, latent->q_rank),
                     column_sum_floats(tokens, latent->kv_rank)});
  const auto bias = [&](bool given, std::int64_t columns) {
    if (given) most = std::max(most, column_sum_floats(tokens, columns));
  };
  bias(layer.attention.qkv_bias, layer.attention.in_size());
  bias(layer.mlp.bias, layer.mlp.up_size());
  bias(layer.attention.out_bias || layer.mlp.bias, hidden);
  bias(layer.experts && layer.experts->biased, layer.experts ? layer.experts->count : 0);
  return most;
}

/// Of the backward pass, where tiles end with their ranges.
std::int64_t attention_bytes(const ModelConfig& of_rank, std::int64_t sequences,
                             std::int64_t tokens) {
  using namespace gpu_scratch;
  std::int64_t heads = 0;
  for (const LayerConfig& layer : of_rank.layers) heads = std::max(heads, layer.attention.heads);
  const auto with_ends = [&](std::int64_t tile) { return tokens + AttentionRanges::kFew * tile; };
  return attention_backward_bytes(sequences, with_ends(kAttentionGpuTileMin),
                                  kAttentionGpuTileMin) +
         attention_turns_bytes(sequences, heads, with_ends(kAttentionTurnTileMin),
                               kAttentionTurnTileMin);
}

/// Of routing and experts' products; every pass routes.
std::int64_t experts_bytes(const ModelConfig& of_rank, const StageShape& shape) {
  using namespace gpu_scratch;
  const int ranks = shape.cut.expert.ranks();
  const std::int64_t tokens = shape.local_tokens() * ranks;
  std::int64_t most = 0;
  for (const LayerConfig& layer : of_rank.layers) {
    if (!layer.experts) continue;
    const std::int64_t here = ceil_div(layer.experts->count, shape.cut.expert.expert.extent);
    most = std::max({most, router_backward_bytes(tokens), expert_rows_bytes(tokens, here),
                     grouped_weights_floats(ranks) * std::int64_t{sizeof(float)}});
    const std::int64_t maxima = here * ranks * ScaleDim::kPartsMax;  // of rows in fp8
    if (shape.fp8) most = std::max(most, maxima * std::int64_t{sizeof(std::int32_t)});
  }
  return most;
}

}  // namespace

std::int64_t gpu_scratch_bytes(const ModelConfig& of_rank, const StageShape& shape) {
  using namespace gpu_scratch;
  const std::int64_t tokens = shape.local_tokens();
  const std::int64_t products =
      kProductWorkspaceBytes + kProductAlignment + (shape.fp8 ? kFp8ProductBytes : 0);
  std::int64_t most = std::max(products, experts_bytes(of_rank, shape));
  if (shape.purpose == StagePurpose::kEvaluation) return most;
  most = std::max({most, embedding_backward_bytes(tokens, of_rank.vocab_size),
                   embedding_backward_bytes(tokens, of_rank.max_positions)});
  for (const LayerConfig& layer : of_rank.layers) {
    const std::int64_t floats = sum_floats(layer, of_rank.hidden, tokens);
    most = std::max(most, floats * std::int64_t{sizeof(float)});
    // Where ranks trade tokens for heads the sums are of all tokens.
    const std::int64_t sinks =
        column_sum_floats(tokens * shape.cut.context.extent, layer.attention.heads);
    if (layer.attention.sinks) most = std::max(most, sinks * std::int64_t{sizeof(float)});
  }
  return std::max(most, attention_bytes(of_rank, shape.sequences, tokens / shape.sequences));
}

}  // namespace trireme
