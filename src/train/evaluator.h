#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>

#include "dataset/evaluation_batches.h"
#include "train/runtime.h"

namespace trireme {

struct EvaluationResult {
  double loss = 0;          ///< mean over the counted targets
  std::int64_t tokens = 0;  ///< counted targets
  [[nodiscard]] double perplexity() const { return std::exp(loss); }
};

/// What is evaluated by itself; the only one may have no name.
struct ValidationSet {
  std::string name;
  std::unique_ptr<EvaluationBatches> batches;
};

/// Loss over the validation windows, shared out over data and context ranks, summed in rank order.
/// Collective; so is `before_pass`, which may end it by throwing on all ranks.
EvaluationResult evaluate(Runtime& runtime, EvaluationBatches& batches,
                          const std::function<void()>& before_pass = {});

/// The first of these passes, for who watches its ops. Collective.
void rehearse_evaluation(Runtime& runtime, EvaluationBatches& batches);

}  // namespace trireme
