#include "generate/generator.h"

#include <algorithm>
#include <utility>

namespace trireme {

void generate(const Feed& feed, std::span<const std::int32_t> prompt, std::int64_t count,
              std::span<const std::int64_t> end_tokens, const SamplingOptions& options,
              const Agree& agree) {
  std::int32_t token = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::span<const float> logits =
        feed(i == 0 ? prompt : std::span(&std::as_const(token), 1));
    token =
        agree(logits.empty() ? -1 : sample_token(logits, options, static_cast<std::uint64_t>(i)));
    if (std::find(end_tokens.begin(), end_tokens.end(), token) != end_tokens.end()) return;
  }
}

}  // namespace trireme
