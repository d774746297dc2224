#pragma once
// The next token from logits: temperature, then top-k, then top-p, as transformers' warpers.

#include <cstdint>
#include <span>
#include <vector>

namespace trireme {

struct SamplingOptions {
  double temperature = 1;  ///< 0: the largest logit, the lowest id on ties
  std::int64_t top_k = 0;  ///< 0: off; ties with the k-th stay
  double top_p = 1;        ///< 1: off; the smallest set of most likely tokens that reaches p
  std::uint64_t seed = 1234;
  /// Logits that are no numbers are a DataError; else any token may come of them.
  bool numbers_alone = false;
};

struct Candidate {
  std::int32_t id;
  double probability;
};

/// What remains after the filters, in order of ids, probabilities normalised. temperature > 0.
std::vector<Candidate> filter_candidates(std::span<const float> logits,
                                         const SamplingOptions& options);

/// Which draw: the i-th token of the j-th sample of a prompt.
struct TokenDraw {
  std::int64_t sample = 0, token = 0;
};

/// One token; it depends on logits, options (with the seed) and draw alone.
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                          const TokenDraw& draw);

}  // namespace trireme
