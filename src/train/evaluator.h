#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "dataset/evaluation_batches.h"
#include "train/runtime.h"
#include "train/start_point.h"
#include "train/trainer_inputs.h"

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

/// The first micro-batch of these, for whoever watches its ops. Collective.
void rehearse_evaluation(Runtime& runtime, EvaluationBatches& batches);

/// What a run evaluates between its steps, and what follows for the run.
class RunEvaluation {
 public:
  /// References must outlive this.
  RunEvaluation(Runtime& runtime, const TrainerInputs& inputs, RunProgress& progress)
      : runtime_(runtime), inputs_(inputs), progress_(progress) {}

  [[nodiscard]] bool is_due_behind(std::int64_t step) const;
  /// Reports each set's loss and the samples, and takes the loss that decides into the progress.
  /// Returns it where the config has a use for it. Collective.
  std::optional<double> run();
  /// So many evaluations in a row were no better.
  [[nodiscard]] bool stops_early() const;

 private:
  std::optional<double> take_loss(std::span<const SetLoss> losses);

  Runtime& runtime_;
  const TrainerInputs& inputs_;
  RunProgress& progress_;
};

}  // namespace trireme
