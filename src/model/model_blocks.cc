#include "model/model_blocks.h"

namespace trireme {

std::vector<std::string> block_names(const ModelConfig& config) {
  std::vector<std::string> names = {"embedding"};
  for (std::int64_t layer = 0; layer < config.layer_count(); ++layer)
    names.push_back(fmt::format("layer {}", layer));
  names.emplace_back("head");
  return names;
}

std::vector<int> places_of_blocks(const ModelParams& params, const ModelConfig& config) {
  const int head = static_cast<int>(config.layer_count()) + 1;
  std::vector<int> places;
  for (const ChunkParams& chunk : params.chunks) {
    if (chunk.range.embedding) places.push_back(0);
    for (std::int64_t i = 0; i < chunk.range.layers; ++i)
      places.push_back(static_cast<int>(chunk.range.first_layer + i) + 1);
    if (chunk.range.head) places.push_back(head);  // the final norm
    if (chunk.range.head && !config.tied_embeddings) places.push_back(head);
  }
  // Tied heads stand behind all others.
  const int blocks = params.metas.empty() ? 0 : params.metas.back().block + 1;
  places.resize(static_cast<std::size_t>(blocks), head);
  return places;
}

}  // namespace trireme
