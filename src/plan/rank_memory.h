#pragma once
// What the ranks of a run need of memory, and what to change where that is more than there is.

#include <cstdint>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "plan/memory.h"
#include "plan/resolve.h"

namespace trireme {

/// Ranks that need the same.
struct EqualRanks {
  int first = 0, stage = 0;
  std::int64_t count = 0, parameters = 0;  ///< of each
  RankMemory memory;
};

/// All ranks of a run, in order of the first of each. What differs between ranks is the pipeline
/// stage and the tensor-parallel rank: shards are padded to the largest, tokens split evenly.
std::vector<EqualRanks> ranks_of(const RunConfig& config, const ResolvedRun& run,
                                 StagePurpose purpose = StagePurpose::kTraining);

/// Of the ranks that need most.
RankMemory most_of(const std::vector<EqualRanks>& ranks);

/// The same of a run in training. On GPUs without `saving`, which is in no sum there and takes
/// longest to know.
RankMemory most_memory(const RunConfig& config, const ResolvedRun& run);
/// Of the first rank of each pipeline stage alone: no more than that.
RankMemory most_memory_of_firsts(const RunConfig& config, const ResolvedRun& run);

/// "parameters 1.2 GiB, gradients ..., buffers ...: 8.4 GiB together"
std::string needed_text(const RankMemory& memory);

/// "parallel.zero_stage 3 (a rank then needs 2.1 GiB), ...": what to change in a run that resolves,
/// what helps most first, each alone, as the changed run would be planned; "" where nothing that is
/// known of helps. `available`: of sizes that may be chosen the largest is named that fits there.
std::string memory_advice(const RunConfig& config, std::int64_t world, DeviceKind device,
                          std::int64_t available, StagePurpose purpose = StagePurpose::kTraining);

}  // namespace trireme
