#pragma once

#include <cmath>

#include "dataset/evaluation_batches.h"
#include "train/runtime.h"

namespace trireme {

struct EvaluationResult {
  double loss = 0;          ///< mean over the counted targets
  std::int64_t tokens = 0;  ///< counted targets
  [[nodiscard]] double perplexity() const { return std::exp(loss); }
};

/// Loss over the validation windows, shared out over the data ranks, summed in rank order.
/// Collective.
EvaluationResult evaluate(Runtime& runtime, EvaluationBatches& batches);

}  // namespace trireme
