#include "generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/random.h"

namespace trireme {

namespace {

/// Softmax over the candidates in place of their logits.
void normalise(std::vector<Candidate>& candidates) {
  double maximum = -INFINITY;
  for (const Candidate& candidate : candidates) maximum = std::max(maximum, candidate.probability);
  double sum = 0;
  for (Candidate& candidate : candidates)
    sum += candidate.probability = std::exp(candidate.probability - maximum);
  for (Candidate& candidate : candidates) candidate.probability /= sum;
}

void keep_top_k(std::vector<Candidate>& candidates, std::int64_t k) {
  if (k <= 0 || k >= static_cast<std::int64_t>(candidates.size())) return;
  std::vector<double> values;
  for (const Candidate& candidate : candidates) values.push_back(candidate.probability);
  std::nth_element(values.begin(), values.begin() + k - 1, values.end(), std::greater<>());
  const double smallest = values[static_cast<std::size_t>(k) - 1];
  std::erase_if(candidates,
                [&](const Candidate& candidate) { return candidate.probability < smallest; });
}

/// Removes the least likely tokens, together within 1 - p; at least one remains.
void keep_top_p(std::vector<Candidate>& candidates, double p) {
  if (p >= 1) return;
  std::vector<std::size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return candidates[a].probability < candidates[b].probability;
  });
  double cumulative = 0;
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {
    cumulative += candidates[order[i]].probability;
    if (cumulative > 1 - p) break;
    candidates[order[i]].id = -1;
  }
  std::erase_if(candidates, [](const Candidate& candidate) { return candidate.id < 0; });
}

}  // namespace

std::vector<Candidate> filter_candidates(std::span<const float> logits,
                                         const SamplingOptions& options) {
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (std::size_t id = 0; id < logits.size(); ++id) {
    candidates.push_back(
        {static_cast<std::int32_t>(id), static_cast<double>(logits[id]) / options.temperature});
  }
  keep_top_k(candidates, options.top_k);
  if (options.top_p < 1) {
    std::vector<Candidate> likely = candidates;
    normalise(likely);
    keep_top_p(likely, options.top_p);
    std::size_t next = 0;
    std::erase_if(candidates, [&](const Candidate& candidate) {
      const bool kept = next < likely.size() && likely[next].id == candidate.id;
      next += kept;
      return !kept;
    });
  }
  normalise(candidates);
  return candidates;
}

std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                          const TokenDraw& draw) {
  const auto no_number = [](float logit) { return std::isnan(logit); };
  if (options.numbers_alone && std::any_of(logits.begin(), logits.end(), no_number)) {
    throw DataError(
        "logits of the next token are not numbers: the weights hold values that are not finite, or "
        "too large for this precision. Give a checkpoint of before they diverged");
  }
  if (options.temperature == 0) {
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) -
                                     logits.begin());
  }
  const std::vector<Candidate> candidates = filter_candidates(logits, options);
  const auto index = static_cast<std::uint64_t>(draw.sample << 32 | draw.token);
  double remaining = static_cast<double>(uniform(stream_key(options.seed, "generate"), index));
  for (const Candidate& candidate : candidates) {
    remaining -= candidate.probability;
    if (remaining < 0) return candidate.id;
  }
  return candidates.back().id;
}

}  // namespace trireme
