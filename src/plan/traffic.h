#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/memory.h"

namespace trireme {

/// What a rank moves of one kind in a step.
struct Traffic {
  Axis axis;
  const char*
      kind;  ///< "gradients", "weights", "updates", "activations", "statistics", "keys_values"
  std::int64_t bytes = 0;      ///< sent
  std::int64_t transfers = 0;  ///< started: of a CPU's over shared memory, which need no rounds
  std::int64_t copies = 0;     ///< into staging memory and out of it; each is one launch
  /// Sent at most, where a router decides how much; `bytes` are then those of equally likely
  /// choices. 0: nothing does.
  std::int64_t worst_bytes = 0;
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

/// What a rank sends along each axis in one step of training, counted as its channels count it.
/// Without sums of a few numbers (loss, norm, reports) and kinds that need nothing.
std::vector<Traffic> step_traffic(const ModelConfig& model, const MemoryRequest& request,
                                  bool document_mask);

}  // namespace trireme
