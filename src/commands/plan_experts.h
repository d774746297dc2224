#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "plan/expert_files.h"

namespace trireme {

/// What `train plan --expert-load` finds: where the experts of each layer stand best.
struct PlannedExperts {
  /// The busiest rank's tokens / the mean of the ranks, in a layer that has experts.
  struct Layer {
    std::int64_t index = 0;
    double neighbours = 1, placed = 1;
    /// What the busiest rank has less to do.
    [[nodiscard]] double gain() const { return 1 - placed / neighbours; }
  };
  std::int64_t ranks = 1;
  std::vector<Layer> layers;
  ExpertPlacement placement;
};

/// Of the config's experts on parallel.expert ranks. ConfigError where that leaves no choice.
PlannedExperts plan_experts(const RunConfig& config, const ExpertLoad& load);

/// As of one layer, the longest ranks of all together: each layer waits for its own.
PlannedExperts::Layer all_layers(const PlannedExperts& planned);

std::string experts_text(const PlannedExperts& planned);
Json experts_json(const PlannedExperts& planned);

}  // namespace trireme
