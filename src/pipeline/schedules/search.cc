#include "pipeline/schedules/search.h"

#include <algorithm>
#include <utility>

#include "pipeline/simulate.h"

namespace trireme {

namespace {

/// The shortest plan so far.
class Best {
 public:
  explicit Best(const GreedyTask& task) : task_(task) {}

  void offer(Plan plan) {
    if (plan.ranks.empty()) return;
    const Simulation simulation = simulate(plan, task_.times, task_.w_memory);
    const double peak = *std::max_element(simulation.peak.begin(), simulation.peak.end());
    if (peak > task_.memory_limit * (1 + 1e-12)) return;
    if (!plan_.ranks.empty() && simulation.cost >= cost_ * (1 - 1e-12)) return;
    cost_ = simulation.cost;
    plan_ = std::move(plan);
  }
  /// No rank can be shorter than its work.
  [[nodiscard]] bool ideal() const {
    const double work = task_.times.all() * static_cast<double>(task_.placement.size()) /
                        task_.ranks * task_.micro_batches;
    return !plan_.ranks.empty() && cost_ <= work * (1 + 1e-12);
  }
  Plan take() { return std::move(plan_); }

 private:
  const GreedyTask& task_;
  Plan plan_;
  double cost_ = 0;
};

std::vector<GreedyRule> rules() {
  std::vector<GreedyRule> all;
  for (const auto first :
       {GreedyRule::First::kInTurns, GreedyRule::First::kBackward, GreedyRule::First::kForward}) {
    for (const double delay_from : {0.5, 1.0, 0.0}) {
      for (const auto gap : {GreedyRule::Gap::kWhereBubbleGrows, GreedyRule::Gap::kAlways,
                             GreedyRule::Gap::kNever}) {
        for (const auto keep_lead : {GreedyRule::Lead::kNever, GreedyRule::Lead::kUntilBackward,
                                     GreedyRule::Lead::kAlways})
          all.push_back({first, delay_from, gap, keep_lead, 0, GreedyRule::Stage::kFar});
      }
    }
  }
  return all;
}

}  // namespace

Plan shortest_plan(const GreedyTask& task, std::vector<Plan> known) {
  Best best(task);
  for (Plan& plan : known) best.offer(std::move(plan));
  for (const GreedyRule& rule : rules()) {
    if (best.ideal()) break;
    best.offer(greedy_plan(task, rule));
  }
  return best.take();
}

}  // namespace trireme
