#include "commands/plan_experts.h"

#include <fmt/core.h>

#include "base/error.h"
#include "base/human_format.h"
#include "plan/expert_balance.h"
#include "telemetry/console.h"

namespace trireme {

PlannedExperts plan_experts(const RunConfig& config, const ExpertLoad& load) {
  PlannedExperts planned;
  planned.ranks = config.parallel.expert;
  if (planned.ranks == 1)
    throw ConfigError(
        "parallel.expert is 1, and one rank has all experts (there is nothing to "
        "place). Legal: with parallel.expert from 2 on, such as --set parallel.expert=2");
  for (std::size_t i = 0; i < load.size(); ++i) {
    const std::vector<std::int64_t>& tokens = load[i];
    std::vector<std::int32_t>& placed = planned.placement.emplace_back();
    if (tokens.empty()) continue;
    placed = place_experts(tokens, planned.ranks);
    const std::vector<std::int32_t> neighbours =
        neighbours_together(std::ssize(tokens), planned.ranks);
    planned.layers.push_back({static_cast<std::int64_t>(i),
                              load_imbalance(tokens, neighbours, planned.ranks),
                              load_imbalance(tokens, placed, planned.ranks)});
  }
  return planned;
}

PlannedExperts::Layer all_layers(const PlannedExperts& planned) {
  PlannedExperts::Layer all{-1, 0, 0};
  for (const PlannedExperts::Layer& layer : planned.layers) {
    all.neighbours += layer.neighbours;
    all.placed += layer.placed;
  }
  const auto layers = static_cast<double>(planned.layers.size());
  all.neighbours /= layers;
  all.placed /= layers;
  return all;
}

std::string experts_text(const PlannedExperts& planned) {
  const std::string header[] = {"layer", "neighbours together", "placed", "gain"};
  const Align columns[] = {Align::kRight, Align::kRight, Align::kRight, Align::kRight};
  std::vector<std::vector<std::string>> rows;
  const auto add_row = [&](std::string name, const PlannedExperts::Layer& layer) {
    rows.push_back({std::move(name), fmt::format("{:.3f}", layer.neighbours),
                    fmt::format("{:.3f}", layer.placed),
                    fmt::format("{:.1f} %", 100 * layer.gain())});
  };
  for (const PlannedExperts::Layer& layer : planned.layers)
    add_row(std::to_string(layer.index), layer);
  add_row("all", all_layers(planned));
  return fmt::format("Experts on {}, tokens of the busiest rank / the mean of ranks:\n",
                     counted(planned.ranks, "rank")) +
         table_text(header, rows, columns);
}

namespace {

Json json_of(const PlannedExperts::Layer& layer) {
  Json json;
  json["neighbours"] = layer.neighbours;
  json["placed"] = layer.placed;
  json["gain"] = layer.gain();
  return json;
}

}  // namespace

Json experts_json(const PlannedExperts& planned) {
  Json json = json_of(all_layers(planned));
  json["ranks"] = planned.ranks;
  Json& layers = json["layers"] = Json::array();
  for (const PlannedExperts::Layer& layer : planned.layers) {
    Json one = json_of(layer);
    one["layer"] = layer.index;
    layers.push_back(std::move(one));
  }
  return json;
}

}  // namespace trireme
