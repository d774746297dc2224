#pragma once
// Where experts stand so that ranks have about as much to do: DeepSeek's EPLB (github.com/
// deepseek-ai/EPLB), in double and with a stable sort. Pure arithmetic.

#include <cstdint>
#include <span>
#include <vector>

namespace trireme {

struct ExpertBalanceTask {
  std::int64_t replicas = 0;  ///< of all experts together; as many as experts: one of each
  std::int64_t ranks = 1;     ///< each gets replicas / ranks
  /// Of neighbouring experts whose replicas stay on one node; on each node equally many. 1 and 1,
  /// or groups % nodes != 0: replicas go anywhere.
  std::int64_t groups = 1, nodes = 1;
};

struct ExpertBalance {
  std::vector<std::int32_t> experts;  ///< [replicas], those of the first rank first
  std::vector<std::int32_t> counts;   ///< [experts]: replicas of each
};

/// For experts that have `load` to do, of which replicas get equal parts:
///   pack       the heaviest first, each on the lightest rank with room; of equals the first
///   replicate  again and again the expert with the largest load / replicas; of equals the first
///   hierarchy  groups are packed to nodes; then on each node replicate, and pack to its ranks
/// replicas, at least the experts, are a multiple of ranks, ranks of nodes, experts of groups.
ExpertBalance balance_experts(std::span<const std::int64_t> load, const ExpertBalanceTask& task);

/// The rank of each expert, one replica of each, equally many on each rank: neighbours together
/// where balance_experts has no shorter longest rank. ConfigError where ranks do not divide
/// experts.
std::vector<std::int32_t> place_experts(std::span<const std::int64_t> load, std::int64_t ranks);

/// The same of neighbours together.
std::vector<std::int32_t> neighbours_together(std::int64_t experts, std::int64_t ranks);

/// The longest rank / their mean; 1 where nothing is to do.
double load_imbalance(std::span<const std::int64_t> load,
                      std::span<const std::int32_t> rank_of_expert, std::int64_t ranks);

}  // namespace trireme
