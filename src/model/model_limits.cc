#include "model/model_limits.h"

namespace trireme {

namespace {
constexpr std::int64_t kHeadDimMax = 256;  // of attention
}

std::optional<Problem> find_unbuilt(const ModelConfig& model) {
  if (model.head_dim % 2 == 0 && model.head_dim <= kHeadDimMax) return std::nullopt;
  const char* path = model.family == Family::kGpt2 ? "model.n_head" : "model.head_dim";
  return Problem{path, fmt::format("heads of size {}", model.head_dim),
                 fmt::format("heads of an even size up to {}", kHeadDimMax), "",
                 "makes heads of a size that is not in this version"};
}

std::optional<Problem> window_fault(const ModelConfig& model, std::int64_t positions) {
  if (model.sliding_window == 0 || positions <= model.sliding_window) return std::nullopt;
  return Problem{"model.sliding_window", std::to_string(model.sliding_window),
                 fmt::format("null, or at least {}", positions), "",
                 fmt::format("is active in sequences of {} tokens (each would see {} positions), "
                             "and such attention is not in this version. Use sequences of up to {} "
                             "tokens",
                             positions, model.sliding_window, model.sliding_window)};
}

void require_built(const ModelConfig& model) {
  if (const auto problem = find_unbuilt(model)) throw_problems({*problem});
}

}  // namespace trireme
