#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "generate/sampler.h"

namespace trireme {

/// Appends tokens to what the model has seen: the logits behind the last, or none if elsewhere.
using Feed = std::function<std::span<const float>(std::span<const std::int32_t>)>;
/// Takes the token chosen here, -1 without logits, and returns everybody's; called once a token.
using Agree = std::function<std::int32_t(std::int32_t)>;

/// Appends up to `count` tokens to the prompt; stops behind any of `end_tokens`, which is agreed on
/// too. The model has seen nothing yet and has room for prompt and continuation.
void generate(const Feed& feed, std::span<const std::int32_t> prompt, std::int64_t count,
              std::span<const std::int64_t> end_tokens, const SamplingOptions& options,
              const Agree& agree);

}  // namespace trireme
