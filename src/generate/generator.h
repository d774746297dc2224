#pragma once
// Continues sequences, many at once: a finished one makes room for the next (Yu et al. 2022, Orca),
// prompts go through the model in chunks beside the others' new tokens. Every rank that has a part
// of the model runs this with the same requests, and decides the same.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "generate/sampler.h"
#include "model/decoder.h"

namespace trireme {

struct SequenceRequest {
  std::vector<std::int32_t> prompt;  ///< not empty
  std::int64_t new_tokens = 0;       ///< at most
  std::int64_t sample = 0;           ///< of this prompt: what its draws depend on
};

/// What a generator asks and says between passes through the model.
struct GenerationCalls {
  /// Before each pass; what it throws ends the work.
  std::function<void()> between = [] {};
  /// `tokens` are those chosen here, -1 where the logits are elsewhere; they become everybody's.
  std::function<void(std::span<std::int32_t> tokens)> agree = [](std::span<std::int32_t>) {};
  /// Requests end in any order; tokens of one come in order.
  std::function<void(std::size_t request, std::int32_t token)> added;
  std::function<void(std::size_t request)> ended = [](std::size_t) {};
};

struct GenerationCounts {
  std::int64_t prompt_tokens = 0, new_tokens = 0;
  std::int64_t sequences_most = 0;  ///< at once
  std::int64_t restarted = 0;       ///< sequences that gave their pages to older ones for a while
};

/// Appends up to new_tokens to each prompt; stops behind any of `end_tokens`, which is added too.
/// The decoder is empty, and a prompt with its new tokens but the last fits into it. A sequence has
/// the tokens that it has alone, whatever the others and the decoder's room.
GenerationCounts generate(Decoder& decoder, std::span<const SequenceRequest> requests,
                          const SamplingOptions& options, std::span<const std::int64_t> end_tokens,
                          const GenerationCalls& calls);

}  // namespace trireme
