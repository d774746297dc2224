#include "plan/layer_balance.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "base/error.h"
#include "config/adapters.h"
#include "model/flops.h"

namespace trireme {

namespace {

/// Room for layers on ranks and stages under two limits of cost.
class Room {
 public:
  explicit Room(const BalanceTask& task) : task_(task) {
    const auto ranks = 1 + *std::max_element(task.placement.begin(), task.placement.end());
    of_rank_.resize(static_cast<std::size_t>(ranks));
    of_stage_.resize(task.placement.size());
  }

  /// Whether all layers fit, each stage with one at least.
  bool fits(std::int64_t rank_cost, std::int64_t stage_cost) {
    std::vector<std::int64_t> stages(of_rank_.size()), in_stages(of_rank_.size());
    for (std::size_t s = 0; s < of_stage_.size(); ++s) {
      const bool last = s + 1 == of_stage_.size();
      of_stage_[s] = layers_in(stage_cost, last);
      if (of_stage_[s] < 1) return false;
      ++stages[rank_of(s)];
      in_stages[rank_of(s)] += of_stage_[s];
    }
    std::int64_t sum = 0;
    for (std::size_t rank = 0; rank < of_rank_.size(); ++rank) {
      of_rank_[rank] = layers_in(rank_cost, rank == rank_of(of_stage_.size() - 1));
      if (of_rank_[rank] < stages[rank]) return false;
      sum += std::min(of_rank_[rank], in_stages[rank]);
    }
    return sum >= task_.layers;
  }

  /// One more layer for a stage that has `held`, where there is room: under the limits asked last.
  bool take(std::size_t stage, std::int64_t held) {
    std::int64_t& of_rank = of_rank_[rank_of(stage)];
    if (held == of_stage_[stage] || of_rank == 0) return false;
    --of_rank;
    return true;
  }

 private:
  [[nodiscard]] std::size_t rank_of(std::size_t stage) const {
    return static_cast<std::size_t>(task_.placement[stage]);
  }
  [[nodiscard]] std::int64_t layers_in(std::int64_t cost, bool with_head) const {
    const std::int64_t left = cost - (with_head ? task_.head : 0);
    return left < 0 ? -1 : left / task_.layer;
  }
  const BalanceTask& task_;
  std::vector<std::int64_t> of_rank_, of_stage_;
};

/// The least cost that `fits`: so many layers, with the head or without. All of it fits.
template <class Fits>
std::int64_t least_cost(const BalanceTask& task, const Fits& fits) {
  std::int64_t best = task.layers * task.layer + task.head;
  for (const std::int64_t more : {std::int64_t{0}, task.head}) {
    std::int64_t low = 0, high = task.layers;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (fits(middle * task.layer + more)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    const std::int64_t cost = low * task.layer + more;
    if (cost < best && fits(cost)) best = cost;
  }
  return best;
}

}  // namespace

PassCost cost_of_layer(const ModelConfig& model, std::int64_t sequence_length,
                       Recompute recompute) {
  const ParameterCount count = count_parameters(model);
  const std::int64_t elements =
      (count.multiplying - model.vocab_size * model.hidden - head_adapter_elements(model)) /
      model.layer_count();
  const std::int64_t trained =
      model.adapters
          ? (count.multiplying - count.frozen_multiplying - head_adapter_elements(model)) /
                model.layer_count()
          : elements;
  std::int64_t pairs = 0;
  for (const LayerConfig& layer : model.layers)
    pairs += layer.attention.pair_size() * layer.attention.seen(sequence_length);
  pairs /= model.layer_count();
  if (!trains_layers(model)) return {2 * elements + 2 * pairs, 0, 0};
  PassCost cost{2 * elements + 2 * pairs, 2 * elements + 5 * pairs, 2 * trained};
  if (recompute == Recompute::kFull) cost.recompute = cost.forward;
  cost.backward_input += cost.recompute;
  return cost;
}

PassCost cost_of_head(const ModelConfig& model) {
  const std::int64_t of_weight = !trains_layers(model) ? 2 : model.adapters ? 4 : 6;
  return {of_weight * model.vocab_size * model.hidden + 6 * head_adapter_elements(model), 0, 0};
}

std::vector<std::int64_t> balance_layers(const BalanceTask& task) {
  const auto stages = std::ssize(task.placement);
  expect(stages >= 1 && task.layers >= stages && task.layer > 0 && task.head >= 0,
         "{} layers for {} stages", task.layers, stages);
  Room room(task);
  const std::int64_t all = task.layers * task.layer + task.head;
  const std::int64_t rank_cost =
      least_cost(task, [&](std::int64_t cost) { return room.fits(cost, all); });
  const std::int64_t stage_cost =
      least_cost(task, [&](std::int64_t cost) { return room.fits(rank_cost, cost); });
  expect(room.fits(rank_cost, stage_cost), "no room for {} layers", task.layers);

  // What the limits leave is a polymatroid, where taking the best next layer ends at the best sum.
  std::vector<std::int64_t> layers(task.placement.size(), 1);
  for (std::size_t s = 0; s < layers.size(); ++s) room.take(s, 0);
  using Next = std::pair<std::int64_t, std::size_t>;  // layers so far, stages behind
  std::priority_queue<Next, std::vector<Next>, std::greater<>> queue;
  for (std::size_t behind = 0; behind < layers.size(); ++behind) queue.emplace(1, behind);
  for (std::int64_t left = task.layers - stages; left > 0;) {
    const auto [count, behind] = queue.top();
    const std::size_t s = layers.size() - 1 - behind;
    queue.pop();
    if (!room.take(s, count)) continue;
    layers[s] = count + 1;
    --left;
    queue.emplace(count + 1, behind);
  }
  return layers;
}

}  // namespace trireme
