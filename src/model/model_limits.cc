#include "model/model_limits.h"

namespace trireme {

namespace {
constexpr std::int64_t kHeadDimMax = 256;     // of attention
constexpr std::int64_t kCachedRowMax = 1024;  // of attention over rows of latents
}  // namespace

std::optional<Problem> find_unbuilt(const ModelConfig& model) {
  for (const LayerConfig& layer : model.layers) {
    const std::int64_t size = layer.attention.head_dim;
    if (size % 2 == 0 && size <= kHeadDimMax) continue;
    const char* path = layer.attention.latent          ? "model.qk_nope_head_dim"
                       : model.family == Family::kGpt2 ? "model.n_head"
                                                       : "model.head_dim";
    return Problem{path, fmt::format("heads of size {}", size),
                   fmt::format("heads of an even size up to {}", kHeadDimMax), "",
                   "makes heads of a size that is not in this version"};
  }
  return std::nullopt;
}

std::optional<Problem> find_ungenerated(const ModelConfig& model) {
  for (const LayerConfig& layer : model.layers) {
    if (!layer.attention.latent) continue;
    const LatentConfig& latent = *layer.attention.latent;
    if (latent.kv_rank % 2 == 0 && latent.cached_size() <= kCachedRowMax) continue;
    return Problem{"model.kv_lora_rank", std::to_string(latent.kv_rank),
                   fmt::format("an even number up to {}", kCachedRowMax - latent.rope_dim), "",
                   "makes rows of a cache for generation of a size that is not in this version"};
  }
  return std::nullopt;
}

void require_generated(const ModelConfig& model) {
  std::vector<Problem> problems;
  for (const auto& problem : {find_unbuilt(model), find_ungenerated(model)})
    if (problem) problems.push_back(*problem);
  if (!problems.empty()) throw_problems(problems);
}

}  // namespace trireme
