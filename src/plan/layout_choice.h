#pragma once
// How a run is laid out over its ranks: the keys of a config that decide who computes what, and not
// what is trained.

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"
#include "config/run_config.h"

namespace trireme {

struct LayoutChoice {
  std::int64_t tensor = 1, context = 1, pipeline = 1;
  ContextMethod context_method = ContextMethod::kRing;
  std::string schedule = "1f1b";
  std::optional<std::int64_t> virtual_stages = {};  ///< of interleaved
  std::int64_t expert = 1, expert_tensor = 1;
  std::int64_t micro = 1, zero_stage = 0;
  Recompute recompute = Recompute::kNone;
  friend bool operator==(const LayoutChoice&, const LayoutChoice&) = default;
};

/// Of a config, whose micro-batch comes to `micro`.
LayoutChoice choice_of(const RunConfig& config, std::int64_t micro);

/// Writes them into a config of this global batch. What belongs to one layout alone is left out:
/// parallel.data, zero_group, expert_placement, pipeline_layers, pipeline_times,
/// pipeline_memory_limit, pipeline_group_size and batch.accumulation.
void take_choice(const LayoutChoice& choice, std::int64_t global, RunConfig& config);

/// The same for a config as it was given.
void take_choice(const LayoutChoice& choice, std::int64_t global, Json& given);

/// {tensor, context, ...}: keys of "parallel" as a config has them, recompute apart.
Json parallel_json(const LayoutChoice& choice);

}  // namespace trireme
