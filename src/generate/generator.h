#pragma once

#include <functional>
#include <span>

#include "generate/sampler.h"
#include "model/decoder.h"

namespace trireme {

/// Appends up to `count` tokens to the prompt, calling `emit` with each as it is made; stops behind
/// `end_token` (< 0: none), which is emitted too. The decoder holds nothing yet and has room for
/// prompt and continuation.
void generate(Decoder& decoder, std::span<const std::int32_t> prompt, std::int64_t count,
              std::int64_t end_token, const SamplingOptions& options,
              const std::function<void(std::int32_t)>& emit);

}  // namespace trireme
