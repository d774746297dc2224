#include "model/model_limits.h"

namespace trireme {

namespace {
constexpr std::int64_t kHeadDimMax = 256;  // of attention
}

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

void require_built(const ModelConfig& model) {
  if (const auto problem = find_unbuilt(model)) throw_problems({*problem});
}

}  // namespace trireme
