#include "plan/expert_balance.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/math.h"

namespace trireme {

namespace {

/// Items in order of their packs, in each in the order that they came there.
std::vector<std::size_t> pack(const std::vector<double>& weights, std::size_t packs) {
  const std::size_t room = weights.size() / packs;
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (room == 1) return order;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return weights[a] > weights[b]; });
  std::vector<double> sums(packs);
  std::vector<std::size_t> held(packs), packed(weights.size());
  for (const std::size_t item : order) {
    std::size_t lightest = packs;
    for (std::size_t i = 0; i < packs; ++i) {
      if (held[i] < room && (lightest == packs || sums[i] < sums[lightest])) lightest = i;
    }
    packed[lightest * room + held[lightest]++] = item;
    sums[lightest] += weights[item];
  }
  return packed;
}

/// The item of each replica; adds to `counts`, ones.
std::vector<std::size_t> replicate(std::span<const double> weights, std::size_t replicas,
                                   std::span<std::int32_t> counts) {
  std::vector<std::size_t> items(weights.size());
  std::iota(items.begin(), items.end(), std::size_t{0});
  while (items.size() < replicas) {
    std::size_t heaviest = 0;
    for (std::size_t i = 1; i < weights.size(); ++i) {
      if (weights[i] / counts[i] > weights[heaviest] / counts[heaviest]) heaviest = i;
    }
    items.push_back(heaviest);
    ++counts[heaviest];
  }
  return items;
}

/// All experts, those of the first node's groups first.
std::vector<std::size_t> experts_by_node(std::span<const std::int64_t> load, std::size_t groups,
                                         std::size_t nodes) {
  const std::size_t size = load.size() / groups;
  std::vector<double> sums(groups);
  for (std::size_t e = 0; e < load.size(); ++e) sums[e / size] += static_cast<double>(load[e]);
  std::vector<std::size_t> experts;
  for (const std::size_t group : pack(sums, nodes)) {
    for (std::size_t i = 0; i < size; ++i) experts.push_back(group * size + i);
  }
  return experts;
}

}  // namespace

ExpertBalance balance_experts(std::span<const std::int64_t> load, const ExpertBalanceTask& task) {
  const bool hierarchical = task.groups % task.nodes == 0;
  const auto groups = static_cast<std::size_t>(hierarchical ? task.groups : 1);
  const auto nodes = static_cast<std::size_t>(hierarchical ? task.nodes : 1);
  const auto replicas = static_cast<std::size_t>(task.replicas);
  const auto ranks = static_cast<std::size_t>(task.ranks);
  expect(replicas >= load.size() && replicas % ranks == 0 && ranks % nodes == 0 &&
             load.size() % groups == 0,
         "{} replicas of {} experts in {} groups on {} ranks of {} nodes", replicas, load.size(),
         groups, ranks, nodes);
  const std::size_t each = load.size() / nodes;
  const std::vector<std::size_t> by_node = experts_by_node(load, groups, nodes);
  ExpertBalance result;
  result.counts.resize(load.size());
  for (std::size_t node = 0; node < nodes; ++node) {
    const std::span here = std::span(by_node).subspan(node * each, each);
    std::vector<double> weights;
    for (const std::size_t expert : here) weights.push_back(static_cast<double>(load[expert]));
    std::vector<std::int32_t> counts(each, 1);
    const std::vector<std::size_t> items = replicate(weights, replicas / nodes, counts);
    std::vector<double> shares;
    for (const std::size_t item : items) shares.push_back(weights[item] / counts[item]);
    for (const std::size_t replica : pack(shares, ranks / nodes))
      result.experts.push_back(narrow<std::int32_t>(here[items[replica]]));
    for (std::size_t i = 0; i < each; ++i) result.counts[here[i]] = counts[i];
  }
  return result;
}

std::vector<std::int32_t> place_experts(std::span<const std::int64_t> load, std::int64_t ranks) {
  const std::int64_t experts = std::ssize(load);
  if (ranks < 1 || experts % ranks != 0) {
    throw ConfigError("{} experts cannot be dealt out evenly to {} ranks", experts, ranks);
  }
  const std::vector<std::int32_t> order = balance_experts(load, {experts, ranks}).experts;
  std::vector<std::int32_t> placed(load.size());
  for (std::size_t at = 0; at < order.size(); ++at)
    placed[static_cast<std::size_t>(order[at])] =
        narrow<std::int32_t>(static_cast<std::int64_t>(at) / (experts / ranks));
  std::vector<std::int32_t> neighbours = neighbours_together(experts, ranks);
  const bool shorter =
      load_imbalance(load, placed, ranks) < load_imbalance(load, neighbours, ranks);
  return shorter ? placed : neighbours;
}

std::vector<std::int32_t> neighbours_together(std::int64_t experts, std::int64_t ranks) {
  std::vector<std::int32_t> rank_of_expert;
  for (std::int64_t e = 0; e < experts; ++e)
    rank_of_expert.push_back(narrow<std::int32_t>(e / (experts / ranks)));
  return rank_of_expert;
}

double load_imbalance(std::span<const std::int64_t> load,
                      std::span<const std::int32_t> rank_of_expert, std::int64_t ranks) {
  std::vector<double> sums(static_cast<std::size_t>(ranks));
  double all = 0;
  for (std::size_t e = 0; e < load.size(); ++e) {
    const auto tokens = static_cast<double>(load[e]);
    sums[static_cast<std::size_t>(rank_of_expert[e])] += tokens;
    all += tokens;
  }
  return all == 0 ? 1
                  : *std::max_element(sums.begin(), sums.end()) * static_cast<double>(ranks) / all;
}

}  // namespace trireme
