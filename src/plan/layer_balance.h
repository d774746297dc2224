#pragma once
// How many layers each virtual stage gets, so that all work about as long: a count of operations.

#include <cstdint>
#include <vector>

#include "config/model_config.h"
#include "config/run_config.h"

namespace trireme {

/// Operations of products and attention for a token, in each pass over a part of the model.
struct PassCost {
  std::int64_t forward = 0, backward_input = 0, backward_weight = 0;
  std::int64_t recompute = 0;  ///< of backward_input, what an R before it would take over
  [[nodiscard]] std::int64_t all() const { return forward + backward_input + backward_weight; }
};

/// With N elements of weights that multiply activations, q_size Q and T positions that a sequence's
/// last token sees, a mean over the layers:
///   F  2N + 2QT   causal attention, each pair of positions once
///   B  2N + 5QT   which makes the scores anew; and F again with full recomputation
///   W  2N, beside a base that stands still 2 an element of its adapters
PassCost cost_of_layer(const ModelConfig& model, std::int64_t sequence_length, Recompute recompute);

/// F of the head makes loss and gradients: 6 times its elements, 4 where it stands still. The
/// embedding costs nothing.
PassCost cost_of_head(const ModelConfig& model);

struct BalanceTask {
  std::int64_t layers = 1;              ///< of the model, all of one cost
  std::int64_t layer = 1, head = 0;     ///< cost; the head is on the last stage
  std::vector<std::int32_t> placement;  ///< rank of each virtual stage, in order of the model
};

/// Layers of each virtual stage, at least one of each: the longest rank is as short as can be; then
/// the longest stage; then the numbers as equal (sum of squares) as can be, later ones the larger,
/// as earlier stages hold more micro-batches at once. Exact. Needs as many layers as stages. In
/// time (stages + layers) log stages.
std::vector<std::int64_t> balance_layers(const BalanceTask& task);

}  // namespace trireme
